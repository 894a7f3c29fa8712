"""What calibration is worth in tokens a second: real telemetry and stated simulations.

    python benchmarks/bench_regret.py [--loads 1 8 32 64 128 256 512] [--replicates 200]
        [--only telemetry lagged alike segments trimmed] [--out result.json]

Every arm of :mod:`calib.throughput_arms` and the static policies, over loads and the smooth, the
kneed and the staircase curve (knee at 256 tokens, tiles of 64):

* telemetry: the shipped log, fitted on half of its prompts and judged on the other half; counted
  outcomes, and an oracle that was fitted on the judged rows and so flatters itself;
* lagged: the same with the capacity from survivals two steps old, the deployed policy;
* alike: simulated blocks of one over-confidence, the truth known;
* segments: simulated blocks of eight domains that differ, the truth known;
* trimmed: the segments as a scheduler at 128 requests logs them, judged by the doubly robust sum
  (no truth used), beside which the same log untrimmed is counted.
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

from benchmarks.measurement import machine_facts
from calib.formats.arrow import read_parquet
from calib.replay_schedule import Policy
from calib.shipped import shipped_telemetry
from calib.throughput_arms import fit_arms
from calib.throughput_document import StudyRequest, analytic_curves, study_document
from calib.throughput_study import LOADS, StudyRules, throughput_study
from tests.support.leaky_generator import trimmed_lengths
from tests.support.segment_generator import simulate_segments

GAMMA = 7
FIT_ROWS = 8192
JUDGED_ROWS = 128 * 240
_KEPT = (
    "curve", "load", "arm", "setting", "theta", "tau", "verified", "wasted", "forecast_bias",
    "modelled_share", "loss", "loss_low", "loss_high", "gain", "gain_low", "gain_high",
)  # fmt: skip


def telemetry(loads: tuple[int, ...], replicates: int, policy: Policy) -> dict[str, Any]:
    rules = StudyRules(loads, policy, replicates=replicates)
    request = StudyRequest(analytic_curves(loads, GAMMA), rules)
    document = study_document(read_parquet(shipped_telemetry(), GAMMA), request)
    return {
        "rows": document["rows"],
        "segments": document["segments"],
        **kept(document["study"]),
    }


def simulated(
    loads: tuple[int, ...], replicates: int, *, spread: float, trim: bool = False
) -> dict[str, Any]:
    fit = simulate_segments(FIT_ROWS, 1, spread=spread)
    judged = simulate_segments(JUDGED_ROWS, 2, spread=spread)
    rules = StudyRules(loads, replicates=replicates)
    curves = analytic_curves(loads, GAMMA)
    truth = judged.blocks.survival
    if not trim:
        arms = fit_arms(fit.records(), judged.records(), truth=truth)
        study = throughput_study(fit.records(), judged.records(), arms, curves, rules, truth=truth)
        return kept(study.to_dict())
    logged = [each.records(trimmed_lengths(each.blocks.logits)) for each in (fit, judged)]
    arms = fit_arms(logged[0], logged[1], truth=truth)
    robust = throughput_study(logged[0], logged[1], arms, curves, rules)
    counted = throughput_study(logged[0], judged.records(), arms, curves, rules)
    return {
        "doubly_robust": kept(robust.to_dict()),
        "counted": kept(counted.to_dict()),
        "largest_difference_of_theta": max(
            abs(mine.replay.theta / exact.replay.theta - 1.0)
            for mine, exact in zip(robust.cells, counted.cells, strict=True)
            if mine.arm not in ("full", "fixed", "threshold")
        ),
    }


def kept(study: dict[str, Any]) -> dict[str, Any]:
    cells = [{name: rounded(cell[name]) for name in _KEPT} for cell in study["cells"]]
    return {"missing": study["missing"], "skipped": study["skipped"], "cells": cells}


def rounded(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loads", type=int, nargs="+", default=list(LOADS))
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    loads, replicates = tuple(given.loads), given.replicates
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "telemetry": lambda: telemetry(loads, replicates, "early_stop"),
        "lagged": lambda: telemetry(loads, replicates, "lagged"),
        "alike": lambda: simulated(loads, replicates, spread=0.0),
        "segments": lambda: simulated(loads, replicates, spread=1.0),
        "trimmed": lambda: simulated(loads, replicates, spread=1.0, trim=True),
    }
    found: dict[str, Any] = {}
    for name, make in parts.items():
        if given.only is None or name in given.only:
            start = time.process_time()
            found[name] = make() | {"cpu_seconds": round(time.process_time() - start, 1)}
    document = {"what": "throughput by replay", "machine": machine_facts(), "results": found}
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    if given.out is None:
        sys.stdout.write(text + "\n")
    else:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
