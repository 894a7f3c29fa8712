"""Drift: what bench_drift.py measures, by part, and three questions it does not ask.

*From the start*: the champion is wrong from row 0, so that nothing changes. *One segment only*: one
of ten segments drifts, and each has a stream of its own at A·10 instead of one for all traffic.
*Benign*: traffic gets harder and easier while every confidence stays true.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, logit

from benchmarks.bench_drift import (
    BEFORE,
    DRIFTS,
    GAMMA,
    Detector,
    betting,
    detectors,
    drifting,
    likelihood_ratio,
    of_river,
    river_drift,
    survival_residual,
)
from monitoring.detectors.observations import Observations
from tests.monitoring.traffic import heads_traffic

SEGMENTS = 10
ROWS = 60_000


def summary(found: list[int | None]) -> dict[str, Any]:
    """Runs, how many alarmed, and the mean row of the alarm."""
    alarms = [row for row in found if row is not None]
    return {
        "runs": len(found),
        "alarmed": len(alarms),
        "mean_rows": round(float(np.mean(alarms))) if alarms else None,
        "largest": max(alarms) if alarms else None,
    }


def first_rows(first: Detector, streams: list[Observations]) -> dict[str, Any]:
    found = [first(rows) for rows in streams]
    return summary([None if alarm is None else alarm[0] + 1 for alarm in found])


def wrong_from_the_start(seeds: int, rows: int) -> dict[str, Any]:
    """Rows to the first alarm when calibration was never right."""
    result: dict[str, Any] = {}
    for name in ("T x 1.25", "T x 1.6", "shift -0.3"):
        said = DRIFTS[name]
        streams = []
        for seed in range(seeds):
            rng = np.random.default_rng([14, seed])
            traffic = heads_traffic(rng, rows)
            age = np.arange(rows)[:, None]
            c = said(traffic.conditional, age, rng).astype(np.float32)
            survival = np.cumprod(c, axis=1, dtype=np.float32)
            streams.append(Observations(c, traffic.verified, traffic.accepted, survival))
        used = {key: found for key, found in detectors().items() if "KSWIN" not in key}
        result[name] = {key: first_rows(first, streams) for key, first in used.items()}
    return result


def one_segment(seeds: int, rows: int) -> dict[str, Any]:
    """A tenth of the rows moves to T × 1.6: one pooled stream, and one a segment."""
    alone, pooled = likelihood_ratio(0.01, 1e6 * SEGMENTS), likelihood_ratio(0.01, 1e6)
    found: dict[str, list[int | None]] = {"stream a segment": [], "one pooled stream": []}
    wrong = 0
    for seed in range(seeds):
        rng = np.random.default_rng([15, seed])
        traffic = heads_traffic(rng, BEFORE + rows)
        segment = rng.integers(0, SEGMENTS, len(traffic))
        moved = (segment == 0) & (np.arange(len(traffic)) >= BEFORE)
        c = expit(np.where(moved, 1.6, 1.0)[:, None] * logit(traffic.conditional))
        observed = Observations(c.astype(np.float32), traffic.verified, traffic.accepted)
        alarm = pooled(observed)
        found["one pooled stream"].append(None if alarm is None else alarm[0] + 1 - BEFORE)
        for index in range(SEGMENTS):
            where = np.flatnonzero(segment == index)
            alarm = alone(observed.select(where))
            if index == 0:
                row = None if alarm is None else int(where[alarm[0]]) + 1 - BEFORE
                found["stream a segment"].append(row)
            else:
                wrong += alarm is not None
    return {name: summary(alarms) for name, alarms in found.items()} | {
        "calibrated_segments_flagged": wrong,
        "calibrated_segments": seeds * (SEGMENTS - 1),
    }


def benign(seeds: int, rows: int) -> dict[str, Any]:
    """Runs with an alarm while traffic changes and calibration holds."""
    streams = [drifting(np.random.default_rng([16, seed]), rows).served() for seed in range(seeds)]
    used = {"lr_act": likelihood_ratio(0.01, 1e6), "betting_R": betting(0.01, 1e6)}
    if river_drift is not None:

        def share(observed: Observations) -> Any:
            return observed.accepted / GAMMA

        for name in ("ADWIN", "PageHinkley"):
            used[f"river_{name}_R"] = of_river(name, survival_residual)
            used[f"river_{name}_accept"] = of_river(name, share)
    return {name: first_rows(first, streams) for name, first in used.items()}


def extra(seeds: int, rows: int = ROWS) -> dict[str, Any]:
    return {
        "wrong_from_the_start": wrong_from_the_start(seeds, rows),
        "one_segment": one_segment(seeds, rows),
        "benign": benign(seeds, rows // 3),
    }
