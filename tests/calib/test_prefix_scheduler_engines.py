"""The scheduler against the published planners of SGLang and vLLM, on shared inputs."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from calib.cost_table import AdditiveCostTable, FlatCostTable
from calib.cost_table_staircase import StaircaseCostTable
from calib.prefix_scheduler import (
    ENGINE_SURVIVAL_FLOOR,
    VerifyLengthLimits,
    allocate,
    capacity_unconstrained,
)
from tests.calib.planners import sglang_planner, vllm_planner

pytestmark = pytest.mark.parity

Array = NDArray[Any]

TABLES: list[FlatCostTable | AdditiveCostTable] = [
    FlatCostTable((1,), (1.0,), 4096),
    FlatCostTable((1, 8, 16, 24, 200), (100.0, 93.0, 60.0, 41.0, 20.0), 4096),
    AdditiveCostTable(
        0.01, (1, 4, 64), (0.001, 0.002, 0.01), (1, 9, 30, 90), (0.0, 0.002, 0.02, 0.05)
    ),
    AdditiveCostTable(0.01, (2,), (-0.001,), (5,), (0.002,)),
]


def confidences(requests: int, gamma: int, seed: int) -> Array:
    """Conditional confidences with ties, ones and nothings among them."""
    draw = np.random.default_rng(seed)
    values = draw.beta(4.0, 1.0, (requests, gamma)).astype(np.float32)
    values[draw.random(values.shape) < 0.1] = np.float32(0.75)
    values[draw.random(values.shape) < 0.05] = np.float32(1.0)
    values[draw.random(values.shape) < 0.03] = np.float32(1e-7)
    return values


def survival_of(values: Array) -> Array:
    return torch.cumprod(torch.from_numpy(values), dim=1).numpy()


@pytest.fixture(scope="module")
def sglang() -> SimpleNamespace:
    root = os.environ.get("DSPARK_SGLANG_WHEEL")
    if not root:
        pytest.skip("DSPARK_SGLANG_WHEEL names no unpacked wheel (make test-parity sets it)")
    return sglang_planner(root)


@pytest.mark.parametrize("cost", TABLES)
@pytest.mark.parametrize(("requests", "gamma"), [(1, 1), (3, 7), (40, 5)])
def test_budget_and_allocation_equal_sglangs(
    sglang: SimpleNamespace, cost: FlatCostTable | AdditiveCostTable, requests: int, gamma: int
) -> None:
    table = sglang.table_of(cost)
    for seed in range(5):
        lagged, current = confidences(requests, gamma, seed), confidences(requests, gamma, seed + 9)
        for minimum, maximum in [
            (1, gamma + 1),
            (1, gamma),
            (0, gamma + 1),
            (min(2, gamma), gamma),
        ]:
            config = sglang.DSparkScheduleConfig(
                gamma=gamma, min_verify_len=minimum, max_verify_len=maximum
            )
            config.validate()
            options: dict[str, Any] = {
                "survival_floor": ENGINE_SURVIVAL_FLOOR,
                "limits": VerifyLengthLimits(minimum, maximum),
            }
            theirs = sglang.compute_verify_token_budget(
                history_survival_probs=torch.from_numpy(survival_of(lagged)),
                sps_table=table,
                cfg=config,
            )
            capacity = capacity_unconstrained(survival_of(lagged), cost, **options)
            assert capacity == theirs.budget
            lens = sglang.schedule_verify_lens_topk(
                confidence=torch.from_numpy(current), budget=capacity, cfg=config
            )
            mine = allocate(survival_of(current), capacity, **options) + 1
            assert mine.tolist() == lens.tolist()


@pytest.mark.parametrize("cost", TABLES)
def test_step_times_equal_sglangs(
    sglang: SimpleNamespace, cost: FlatCostTable | AdditiveCostTable
) -> None:
    table = sglang.table_of(cost)
    for requests in (1, 2, 3, 50, 100):
        for budget in (0, 1, 5, 7, 29, 400):
            mine = float(cost.steps_per_second(requests + budget, requests))
            if isinstance(cost, FlatCostTable):
                assert mine == table.lookup(requests + budget)
            else:
                seconds = table.step_time(num_reqs=requests, budget=budget)
                assert mine == pytest.approx(1.0 / seconds, rel=1e-14)


# ---- vLLM ----


@pytest.fixture(scope="module")
def vllm() -> SimpleNamespace:
    root = os.environ.get("DSPARK_VLLM_WHEEL")
    if not root:
        pytest.skip("DSPARK_VLLM_WHEEL names no unpacked wheel (make test-parity sets it)")
    return vllm_planner(root)


CURVES: list[StaircaseCostTable] = [
    StaircaseCostTable(((1, 1.0),), ((1, 10.0),)),
    StaircaseCostTable(
        ((1, 1.0), (8, 1.4), (64, 2.2)),
        ((1, 9.0), (8, 10.0), (16, 9.5), (64, 14.0), (96, 22.0), (256, 40.0)),
        graph_limit=64,
    ),
    StaircaseCostTable(((4, 0.5), (16, 0.9)), ((8, 7.0), (128, 20.0)), graph_limit=128),
]


@pytest.mark.parametrize("table", CURVES)
def test_tables_equal_vllms(vllm: SimpleNamespace, table: StaircaseCostTable) -> None:
    draft, verify = vllm.build_cost_tables_from_curves(
        list(table.draft_curve), list(table.verify_curve), 100, 600, table.graph_limit
    )
    tokens = np.arange(1, 601)
    for requests in (1, 4, 5, 16, 17, 64, 65, 100):
        seconds = table.step_seconds(tokens, requests)
        assert seconds.tolist() == ((draft[requests] + verify[1:]) / 1000.0).tolist()


@pytest.mark.parametrize("table", CURVES)
@pytest.mark.parametrize(("requests", "gamma"), [(1, 3), (6, 7), (40, 7)])
def test_budget_equals_vllms(
    vllm: SimpleNamespace, table: StaircaseCostTable, requests: int, gamma: int
) -> None:
    for seed in range(6):
        values = confidences(requests, gamma, seed)
        most = [10_000, requests + 5][seed % 2]  # logits that one chunk can hold
        survival = np.cumprod(values.astype(np.float64), axis=1)
        mine = capacity_unconstrained(survival, table, largest=most - requests)
        assert mine == vllm.step(values, table, most)()
