"""The prefix scheduler against an engine's own planner, one step at a time.

    python benchmarks/bench_scheduler.py [--requests 512] [--gamma 16] [--steps 200]
        [--out result.json]

Every planner decides the same steps on the same survivals: early stop, lagged (capacity and
allocation) and the unconstrained search of this project; SGLang's budget and allocation, and vLLM's
budget, from the engines' own source where ``DSPARK_SGLANG_WHEEL`` and ``DSPARK_VLLM_WHEEL`` name
unpacked wheels. Microseconds of CPU a step, median over the steps; and the Θ each schedule gets,
by the survivals it was made from, relative to the best.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import machine_facts
from calib.cost_table import CostTable, FlatCostTable
from calib.cost_table_shapes import analytic_cost_table
from calib.cost_table_staircase import StaircaseCostTable
from calib.prefix_scheduler import (
    ENGINE_SURVIVAL_FLOOR,
    allocate,
    capacity_unconstrained,
    forecast,
    schedule_early_stop,
    schedule_lagged,
    schedule_unconstrained,
)
from calib.replay_schedule import schedule_steps
from calib.replay_steps import ReplaySteps

Survival = NDArray[np.float32]
Plan = Callable[[Survival, Survival], Any]


def tables(requests: int, gamma: int) -> dict[str, CostTable]:
    longest = requests * (gamma + 1)
    knee = longest // 3
    smooth = analytic_cost_table("smooth", max_batch_tokens=longest, knee=knee)
    stairs = analytic_cost_table("staircase", max_batch_tokens=longest, knee=knee, tile=256)
    probes = tuple(range(1, longest, 64))
    seconds = smooth.step_seconds(np.array(probes), requests)
    sizes = (*range(256, longest, 256), longest)
    times = stairs.step_seconds(np.array(sizes), requests) * 1000.0
    curve = tuple(zip(sizes, times.tolist(), strict=True))
    return {
        "smooth": smooth,
        "flat, as SGLang's": FlatCostTable(probes, tuple((1.0 / seconds).tolist()), longest),
        "staircase, as vLLM's": StaircaseCostTable(((requests, 1.0),), curve, longest),
    }


def ours(cost: CostTable) -> dict[str, Plan]:
    floor = ENGINE_SURVIVAL_FLOOR
    return {
        "early stop": lambda now, _: schedule_early_stop(now, cost),
        "lagged": lambda now, old: schedule_lagged(now, old, cost),
        "unconstrained": lambda now, _: schedule_unconstrained(now, cost),
        "capacity alone": lambda _, old: capacity_unconstrained(old, cost, survival_floor=floor),
        "allocation alone": lambda now, _: allocate(now, now.size // 2, survival_floor=floor),
    }


def sglang(root: str, cost: FlatCostTable, gamma: int) -> dict[str, Plan]:
    """The engine's budget and allocation, with its own tensors made beforehand."""
    import torch

    from tests.calib.planners import sglang_planner

    torch.set_num_threads(1)
    planner = sglang_planner(root)
    table = planner.table_of(cost)
    config = planner.DSparkScheduleConfig(gamma=gamma)
    return {
        "SGLang's budget": lambda _, old: planner.compute_verify_token_budget(
            history_survival_probs=torch.from_numpy(old), sps_table=table, cfg=config
        ),
        "SGLang's allocation": lambda now, _: planner.schedule_verify_lens_topk_from_survival(
            survival_probs=torch.from_numpy(now), budget=now.size // 2, cfg=config
        ),
    }


def vllm(root: str, cost: StaircaseCostTable, confidences: dict[int, Survival]) -> dict[str, Plan]:
    from tests.calib.planners import vllm_planner

    planner = vllm_planner(root)
    built: dict[int, Any] = {}

    def plan(_: Survival, old: Survival) -> Any:
        if id(old) not in built:
            built[id(old)] = planner.step(confidences[id(old)], cost, old.size + len(old))
        return built[id(old)]()

    return {"vLLM's budget": plan}


def microseconds(plan: Plan, steps: list[tuple[Survival, Survival]]) -> float:
    for now, old in steps[:3]:
        plan(now, old)
    found = []
    for now, old in steps:
        start = time.process_time_ns()
        plan(now, old)
        found.append((time.process_time_ns() - start) / 1000.0)
    return round(float(np.median(found)), 1)


def batched(steps: list[tuple[Survival, Survival]], cost: CostTable) -> float:
    """Microseconds a step when a replay schedules all of them at once."""
    rows, requests = np.concatenate([now for now, _ in steps]), len(steps[0][0])
    count = len(steps)
    grouped = ReplaySteps(
        rows=np.arange(len(rows)),
        starts=np.arange(count + 1) * requests,
        streams=np.zeros(count, dtype=np.intp),
        slots=np.tile(np.arange(requests), count),
        requests_named=False,
        left_out=0,
    )
    start = time.process_time_ns()
    schedule_steps(rows.astype(np.float64), grouped, cost)
    return round((time.process_time_ns() - start) / 1000.0 / count, 1)


def measured(requests: int, gamma: int, count: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    raw = [draw.beta(4.0, 1.0, (requests, gamma)).astype(np.float32) for _ in range(count + 2)]
    survivals = [np.cumprod(each, axis=1, dtype=np.float32) for each in raw]
    steps = [(survivals[at + 2], survivals[at]) for at in range(count)]
    confidences = {id(survival): each for survival, each in zip(survivals, raw, strict=True)}
    found: dict[str, Any] = {}
    for name, cost in tables(requests, gamma).items():
        plans = ours(cost)
        if isinstance(cost, FlatCostTable) and (root := os.environ.get("DSPARK_SGLANG_WHEEL")):
            plans |= sglang(root, cost, gamma)
        if isinstance(cost, StaircaseCostTable) and (root := os.environ.get("DSPARK_VLLM_WHEEL")):
            plans |= vllm(root, cost, confidences)
        found[name] = {
            "microseconds": {plan: microseconds(call, steps) for plan, call in plans.items()}
            | {"early stop, all steps at once": batched(steps[:64], cost)},
            "theta_against_best": against_best(steps[:50], cost),
        }
    return found


def against_best(steps: list[tuple[Survival, Survival]], cost: CostTable) -> dict[str, float]:
    shares: dict[str, list[float]] = {"early stop": [], "lagged": []}
    for now, old in steps:
        best = forecast(schedule_unconstrained(now, cost).verified, now, cost).theta or 1.0
        shares["early stop"].append((schedule_early_stop(now, cost).theta or 0.0) / best)
        shares["lagged"].append((schedule_lagged(now, old, cost).theta or 0.0) / best)
    return {name: round(float(np.mean(values)), 5) for name, values in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--gamma", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    document = {
        "what": "microseconds of CPU a step",
        "requests": given.requests,
        "gamma": given.gamma,
        "steps": given.steps,
        "machine": machine_facts(),
        "results": measured(given.requests, given.gamma, given.steps),
    }
    text = json.dumps(document, indent=1)
    sys.stdout.write(text + "\n")
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
