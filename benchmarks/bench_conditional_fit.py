"""Conditional likelihood, survival model and projection, beside SGLang's fitter.

    python benchmarks/bench_conditional_fit.py [--rows 10000 100000 1000000] [--repeats 3]
        [--seeds 3] [--skip-cost] [--skip-accuracy] [--out result.json]

Two tables. *Cost*: single-threaded CPU seconds from rows to numbers, of a refit from a sketch, and
peak memory; every repeat runs every method once, the smallest counts. *Accuracy*: error of survival
on held-out blocks against exact survival (15 bins, mean over positions), for full and trimmed logs,
with and without token leak. Trimmed lengths come from an early-stopping scheduler at 128 requests;
the searches on accepted lengths read what was trimmed as rejected, as SGLang's collector would.

SGLang is measured where ``DSPARK_SGLANG_WHEEL`` names an unpacked wheel; elsewhere, and for
accuracy, our copy of its algorithm stands in (identical temperatures). Rows are simulated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy and torch load
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.measurement import extra_megabytes, machine_facts, measure, sglang_method
from calib.calibration import Calibration
from calib.conditional_likelihood import ConditionalLikelihood
from calib.logit_sketch import LogitSketch
from calib.pair_sketch import PairSketch
from calib.sts_parity import fit_sts_parity
from calib.survival_model import fit_survival_model, pair_folds
from calib.survival_projection import project_survival
from tests.calib.sglang_fitter import sglang_fitter
from tests.support.leaky_generator import (
    LeakyBlocks,
    simulate_leaky,
    survival_ece,
    trimmed_lengths,
)

PROJECTION_ROWS = 20_000


def sketch_rows(blocks: LeakyBlocks) -> LogitSketch:
    return LogitSketch.from_lengths(blocks.logits, blocks.accepted)


def conditional(blocks: LeakyBlocks) -> list[float]:
    return list(ConditionalLikelihood().fit_sketch(sketch_rows(blocks)).temperatures_)


def affine(blocks: LeakyBlocks) -> list[float]:
    return list(ConditionalLikelihood("affine").fit_sketch(sketch_rows(blocks)).slopes_)


def survival(blocks: LeakyBlocks) -> list[float]:
    fit = ConditionalLikelihood("affine").fit_sketch(sketch_rows(blocks))
    pairs = PairSketch.from_lengths(blocks.logits, blocks.accepted)
    model = fit_survival_model(fit, [pairs])
    sample = blocks.logits[:PROJECTION_ROWS]
    return list(project_survival(sample, model.survival(sample)).temperatures)


def parity(blocks: LeakyBlocks) -> list[float]:
    return list(fit_sts_parity(blocks.logits, blocks.prefix_mask).temperatures)


METHODS: dict[str, Any] = {
    "conditional temperature": conditional,
    "conditional affine": affine,
    "survival model, projected": survival,
}


def cost(reference: Any, rows: int, repeats: int) -> dict[str, Any]:
    blocks = simulate_leaky(rows, seed=0)
    methods = {"sequential scaling": reference, **METHODS}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    sketch = sketch_rows(blocks)
    pairs = PairSketch.from_lengths(blocks.logits, blocks.accepted)
    fitted = ConditionalLikelihood("affine").fit_sketch(sketch)
    refits = {
        "refit temperature": lambda _: ConditionalLikelihood().fit_sketch(sketch),
        "refit affine": lambda _: ConditionalLikelihood("affine").fit_sketch(sketch),
        "refit hazards": lambda _: fit_survival_model(fitted, [pairs]),
    }
    seconds |= {name: [] for name in refits}
    for _ in range(repeats):
        for name, method in {**methods, **refits}.items():
            seconds[name].append(measure(method, blocks)[0])
    entries: dict[str, Any] = {
        name: {"cpu_seconds": min(found), "cpu_seconds_all": found}
        for name, found in seconds.items()
    }
    for name in methods:
        entries[name]["extra_megabytes"] = fresh_memory(name, rows)
        ratio = entries["sequential scaling"]["cpu_seconds"] / entries[name]["cpu_seconds"]
        entries[name]["times_less_cpu"] = round(ratio, 1)
    return {
        "rows": rows,
        "methods": entries,
        "bytes_stored": {"logits": len(sketch.to_bytes()), "pairs": len(pairs.to_bytes())},
    }


def fresh_memory(name: str, rows: int) -> float | None:
    command = [sys.executable, __file__, "--memory-of", name, "--rows", str(rows)]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: float | None = json.loads(answer.stdout)
    return found


def arms(blocks: LeakyBlocks, verified: Any, test: LeakyBlocks) -> dict[str, float]:
    """Held-out error of every estimator fitted on these blocks."""
    records = blocks.records(verified)
    mask = np.arange(records.gamma) < records.accepted[:, None]
    sequential = fit_sts_parity(blocks.logits, mask.astype(np.float32)).temperatures
    temperature = ConditionalLikelihood().fit_records(records)
    both = ConditionalLikelihood("affine").fit_records(records)
    model = fit_survival_model(both, pair_folds(records))
    sample = blocks.logits[:PROJECTION_ROWS]
    projection = project_survival(sample, model.survival(sample), evidence_rows=model.rows)
    scaled = Calibration.from_temperatures(np.clip(sequential, 0.05, 20.0), gamma=records.gamma)
    served = Calibration.from_temperatures(projection.temperatures, gamma=records.gamma)
    curves = test.logits * np.array(projection.slopes) + np.array(projection.intercepts)
    predicted = {
        "raw": Calibration.identity(records.gamma).survival(test.logits),
        "sequential scaling": scaled.survival(test.logits),
        "conditional temperature": temperature.survival(test.logits),
        "conditional affine": both.survival(test.logits),
        "survival model": model.survival(test.logits),
        "projected temperatures": served.survival(test.logits),
        "projected affine": np.cumprod(1.0 / (1.0 + np.exp(-curves)), axis=1),
    }
    return {name: float(survival_ece(p, test).mean()) for name, p in predicted.items()}


def accuracy(rows: int, seeds: int, test_rows: int, **shape: Any) -> list[dict[str, Any]]:
    test = simulate_leaky(test_rows, seed=10_000, **shape)
    tables = []
    for trimmed in (False, True):
        runs = []
        for seed in range(seeds):
            blocks = simulate_leaky(rows, seed, **shape)
            runs.append(arms(blocks, trimmed_lengths(blocks.logits) if trimmed else None, test))
        means = {name: round(float(np.mean([run[name] for run in runs])), 5) for name in runs[0]}
        tables.append({"rows": rows, "trimmed": trimmed, "seeds": seeds, **shape, "ece": means})
        show_accuracy(tables[-1])
    return tables


def show_accuracy(table: dict[str, Any]) -> None:
    log = "trimmed" if table["trimmed"] else "full"
    shape = f"leak {table['partial']:.2f}{' shared' if table['shared'] else ''}"
    shape += " misfit" if table["misfit"] else ""
    values = "  ".join(f"{name} {value:.4f}" for name, value in table["ece"].items())
    print(f"{table['rows']:>8} {log:<8}{shape:<18}{values}", flush=True)


def show_cost(result: dict[str, Any]) -> None:
    print(f"\n{result['rows']} rows; stored {result['bytes_stored']}")
    for name, entry in result["methods"].items():
        ratio = f"{entry['times_less_cpu']:>8}x" if "times_less_cpu" in entry else ""
        memory = f"{entry['extra_megabytes']:>8} MB" if "extra_megabytes" in entry else ""
        print(f"  {name:<28}{entry['cpu_seconds']:>10.4f} s{ratio}{memory}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--fit-rows", type=int, nargs="+", default=[1024, 10_240, 102_400])
    parser.add_argument("--test-rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--skip-cost", action="store_true")
    parser.add_argument("--skip-accuracy", action="store_true")
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    document: dict[str, Any] = {"benchmark": "conditional_fit", "cost": [], "accuracy": []}
    with ExitStack() as stack:
        reference = parity
        root = os.environ.get("DSPARK_SGLANG_WHEEL")
        if root:
            reference = sglang_method(stack.enter_context(sglang_fitter(root)))
        document["sequential_scaling_is"] = "sglang" if root else "own copy"
        for method in (reference, *METHODS.values()):
            method(simulate_leaky(300, seed=1))  # imports and first-call costs
        if arguments.memory_of:
            methods = {"sequential scaling": reference, **METHODS}
            blocks = simulate_leaky(arguments.rows[0], seed=0)
            print(json.dumps(extra_megabytes(methods[arguments.memory_of], blocks)))
            return
        for rows in [] if arguments.skip_cost else arguments.rows:
            document["cost"].append(cost(reference, rows, arguments.repeats))
            show_cost(document["cost"][-1])
    for rows in [] if arguments.skip_accuracy else arguments.fit_rows:
        for misfit, shared, partial in [
            *((False, False, partial) for partial in (0.0, 0.09, 0.18)),
            (False, True, 0.18),
            (True, False, 0.0),
            (True, False, 0.18),
        ]:
            shape = {"partial": partial, "shared": shared, "misfit": misfit}
            document["accuracy"] += accuracy(rows, arguments.seeds, arguments.test_rows, **shape)
    document["machine"] = machine_facts()
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
