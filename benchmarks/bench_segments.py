"""Traffic of eight segments: one calibration for all of it, one for each, and shrunk ones.

    python benchmarks/bench_segments.py [--rows 1000 3000 10000] [--seeds 6] [--test-rows 102400]
        [--out result.json]

Every arm is fitted on the same simulated log and judged on other blocks against their exact
survival: error (15 bins, mean over positions) over all traffic, on the mean segment, on the worst
and on those of at most 5 % of the rows, and throughput lost against a scheduler that knows the
truth (Algorithm 1 at 128 requests, knee at 256 tokens). Logs: segments that differ by one effect
over all positions; with residuals of single positions on top; all alike; and the first one trimmed
by a scheduler at 128 requests that trusts the raw confidences.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.measurement import machine_facts
from calib.calibration import Calibration
from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table_shapes import analytic_cost_table
from calib.records import AcceptanceRecords
from calib.regret import ThetaReplay, ThroughputReplay
from calib.replay_outcomes import ExpectedOutcomes
from calib.segment_cells import SegmentReader, joined
from calib.segment_fitting import fit_segments
from calib.segment_model import SegmentFit
from calib.segment_projection import project_segments
from calib.segment_rescaling import rescale_segments
from calib.segment_ridge import Strengths, fit_deviations
from calib.segment_sketches import SegmentSketches
from calib.segment_tags import POOL, SegmentLevels
from calib.sts_parity import fit_sts_parity
from tests.support.leaky_generator import survival_ece, trimmed_lengths
from tests.support.segment_generator import (
    SHARES,
    SegmentedBlocks,
    segment_errors,
    simulate_segments,
)

REQUESTS = 128
LEVELS = SegmentLevels((("domain",),))
SHAPES: dict[str, dict[str, Any]] = {
    "one effect a segment": {"spread": 1.0},
    "with residuals of positions": {"spread": 1.0, "residual": 0.15},
    "all alike": {"spread": 0.0},
    "trimmed": {"spread": 1.0, "trimmed": True},
}
Survival = NDArray[np.floating]


def scaled_sequentially(traffic: SegmentedBlocks, records: AcceptanceRecords) -> Calibration:
    """Pooled STS on accepted lengths, what was trimmed read as rejected, as SGLang's collector."""
    mask = (np.arange(records.gamma) < records.accepted[:, None]).astype(np.float32)
    found = fit_sts_parity(traffic.blocks.logits, mask).temperatures
    return Calibration.from_temperatures(np.clip(found, 0.05, 20.0), gamma=records.gamma)


def one_by_one(records: AcceptanceRecords, test: AcceptanceRecords) -> Survival:
    """Slope and intercept of each segment alone, one row of ridge to identity."""
    reader = SegmentReader.of(SegmentSketches.from_records(records, levels=LEVELS))
    keys = [key for key in reader.keys(("domain",)) if reader.rows(key).any()]
    shape = (len(keys), records.gamma)
    stacks = joined(reader.stacks(keys))
    found = fit_deviations(stacks, np.ones(shape), np.zeros(shape), Strengths(math.inf, 1.0))
    base = fit_segments(reader.parts, levels=LEVELS, strengths=[Strengths(math.inf, math.inf)])
    fits = {
        key: SegmentFit(key, POOL, base.segments[key].rows, tuple(s), tuple(b))
        for key, s, b in zip(keys, found.slopes.tolist(), found.intercepts.tolist(), strict=True)
    }
    return replace(base, segments={POOL: base.segments[POOL], **fits}).survival(test)


def arms(
    traffic: SegmentedBlocks, records: AcceptanceRecords, test: AcceptanceRecords
) -> tuple[dict[str, Survival], dict[str, float]]:
    """Survivals of the test blocks by arm, and CPU seconds of ours."""
    logits = test.confidence_logits
    temperature = ConditionalLikelihood().fit_records(records)
    affine = ConditionalLikelihood("affine").fit_records(records)
    start = time.process_time()
    sketches = SegmentSketches.from_records(records, levels=LEVELS)
    sketched = time.process_time()
    model = fit_segments(sketches, levels=LEVELS)
    fitted = time.process_time()
    # Served whatever the rows: the benchmark compares numbers, not rules of publishing.
    pool = replace(
        Calibration.from_temperatures(temperature.temperatures_, gamma=records.gamma),
        slopes=tuple(affine.slopes_),
        intercepts=tuple(affine.intercepts_),
    )
    table = project_segments(model, records, pool)
    if bool((records.verified == records.gamma).all()):
        table, _ = rescale_segments(table, records)
    projected = time.process_time()
    predicted = {
        "raw": Calibration.identity(records.gamma).survival(logits),
        "pooled sequential scaling": scaled_sequentially(traffic, records).survival(logits),
        "pooled conditional temperature": temperature.survival(logits),
        "pooled conditional affine": np.cumprod(
            expit(logits * affine.slopes_ + affine.intercepts_), axis=1
        ),
        "each segment alone, affine": one_by_one(records, test),
        "segments shrunk, affine": model.survival(test),
        "segments served, affine": table.survival(test, "affine"),
        "segments served, temperatures": table.survival(test),
    }
    seconds = {
        "sketch": sketched - start,
        "fit": fitted - sketched,
        "project": projected - fitted,
    }
    return predicted, seconds


def figures(
    survival: Survival, test: SegmentedBlocks, replay: ThroughputReplay, oracle: ThetaReplay
) -> dict[str, float]:
    errors = segment_errors(survival, test)
    found = replay.regret(survival, oracle, replicates=1)
    return {
        "pooled_ece": float(survival_ece(survival, test.blocks).mean()),
        "mean_segment_ece": float(errors.mean()),
        "worst_segment_ece": float(errors.max()),
        "small_segment_ece": float(errors[SHARES <= 0.05].mean()),
        "regret": found.loss,
        "forecast_bias": found.candidate.forecast_bias,
    }


def table(shape: str, rows: int, seeds: int, test_rows: int) -> dict[str, Any]:
    options = dict(SHAPES[shape])
    trimmed = options.pop("trimmed", False)
    test = simulate_segments(test_rows, 10_000, **options)
    test_records = test.records()
    replay = ThroughputReplay.of(
        test_records,
        analytic_cost_table("smooth", max_batch_tokens=8 * REQUESTS),
        batch_size=REQUESTS,
        outcomes=ExpectedOutcomes(test.blocks.survival),
    )
    oracle = replay.theta(test.blocks.survival)
    runs: dict[str, list[dict[str, float]]] = {}
    cpu: list[dict[str, float]] = []
    for seed in range(seeds):
        traffic = simulate_segments(rows, seed, **options)
        records = traffic.records(trimmed_lengths(traffic.blocks.logits) if trimmed else None)
        predicted, seconds = arms(traffic, records, test_records)
        cpu.append(seconds)
        for name, survival in predicted.items():
            runs.setdefault(name, []).append(figures(survival, test, replay, oracle))
    return {
        "shape": shape,
        "rows": rows,
        "seeds": seeds,
        "arms": {name: summary(found) for name, found in runs.items()},
        "cpu_seconds": {name: min(each[name] for each in cpu) for name in cpu[0]},
    }


def summary(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Means over seeds, and the standard error of the two that have targets."""
    means: dict[str, Any] = {
        name: round(float(np.mean([run[name] for run in runs])), 6) for name in runs[0]
    }
    if len(runs) > 1:
        for name in ("mean_segment_ece", "regret"):
            spread = float(np.std([run[name] for run in runs], ddof=1))
            means[f"{name}_standard_error"] = round(spread / math.sqrt(len(runs)), 6)
    return means


def show(found: dict[str, Any]) -> None:
    print(f"\n{found['rows']} rows, {found['shape']}, {found['seeds']} seeds")
    print(
        f"  {'':<32}{'pooled':>8}{'mean':>8}{'worst':>8}{'small':>8}{'regret':>9}{'forecast':>10}"
    )
    for name, row in found["arms"].items():
        errors = ("pooled_ece", "mean_segment_ece", "worst_segment_ece", "small_segment_ece")
        cells = "".join(f"{row[key]:>8.4f}" for key in errors)
        print(f"  {name:<32}{cells}{row['regret']:>9.3%}{row['forecast_bias']:>10.2%}")
    shown = ", ".join(f"{name} {value:.3f}" for name, value in found["cpu_seconds"].items())
    print(f"  CPU seconds: {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--test-rows", type=int, default=102_400)
    parser.add_argument("--out", type=Path, help="where to write the result as JSON")
    arguments = parser.parse_args()
    document: dict[str, Any] = {"benchmark": "segments", "tables": []}
    for shape in arguments.shapes:
        for rows in arguments.rows:
            found = table(shape, rows, arguments.seeds, arguments.test_rows)
            document["tables"].append(found)
            show(found)
    document["machine"] = machine_facts()
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
