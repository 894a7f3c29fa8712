"""Drift detectors side by side: cost, false alarms, delay. Ours, and river's where it is installed.

    python benchmarks/bench_drift.py [--seeds 6] [--null-rows 1000000] [--long-rows 5000000]
                                     [--only cost null run_length delay long dependence]
                                     [--out result.json]

* cost: rows per CPU-second of one thread (``time.process_time``), best of three.
* null: alarms while calibration holds: stable traffic; perfect conditional confidence whose next
  logit reveals the token, trimmed on it; traffic that drifts while it is calibrated. After an alarm
  each detector begins anew.
* run_length: mean rows to a false alarm at A = 10³, cut at 20,000, against the promise of ≥ 1,000.
* delay: rows from a change to the alarm, and the error of the change point, by kind of drift. The
  shapes marked ``fresh`` had no part in choosing the alternatives.
* long: one run of the act level over ``--long-rows`` calibrated rows.
* dependence: false alarms and delays where the rows of a request share luck (intraclass .025, 100
  rows a request, 64 side by side), by design effect, and with A multiplied instead.

Traffic is simulated (tests/monitoring/traffic.py): fleet-interleaved, rows independent given their
logits. In a drift it is the champion's confidence that moves while acceptance stays, so a detector
on acceptance alone cannot see it. River runs at its defaults on R = (n − Σ S)/γ and on the accepted
share n/γ; its detectors make no promise about false alarms.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.special import expit, logit

from monitoring.detectors.betting import BettingDetector, Stream
from monitoring.detectors.levels import DriftLevels
from monitoring.detectors.likelihood_ratio import LikelihoodRatioDetector
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import survival_residual
from tests.monitoring.traffic import (
    GAMMA,
    Traffic,
    heads_traffic,
    leaky_traffic,
    miscalibrated,
    shared_luck_traffic,
)

try:
    from river import drift as river_drift
except ImportError:
    river_drift = None

BEFORE = 2000  # calibrated rows before a change
AFTER = 60_000
BATCH = 50_000
KSWIN_ROWS = 5000  # it manages about a thousand rows a second

# A detector here maps observations to (first alarm row, change point) and begins anew every call.
Found = tuple[int, int] | None
Detector = Callable[[Observations], Found]


def likelihood_ratio(tolerance: float, threshold: float) -> Detector:
    detector = LikelihoodRatioDetector(GAMMA, tolerance, threshold)

    def first(rows: Observations) -> Found:
        alarm = detector.update(detector.start(), rows).verdict.alarm
        return None if alarm is None else (alarm.row, alarm.change_point.row)

    return first


def betting(tolerance: float, threshold: float) -> Detector:
    detector = BettingDetector((Stream("survival residual", tolerance, 1.0),), threshold)

    def first(rows: Observations) -> Found:
        alarm = detector.update(detector.start(), [survival_residual(rows)]).verdict.alarm
        return None if alarm is None else (alarm.row, alarm.change_point.row)

    return first


def of_river(name: str, value: Callable[[Observations], Any], limit: int | None = None) -> Detector:
    def first(rows: Observations) -> Found:
        detector = getattr(river_drift, name)()
        for row, number in enumerate(value(rows)[:limit].tolist()):
            detector.update(number)
            if detector.drift_detected:
                return row, row
        return None

    return first


def accepted_share(rows: Observations) -> Any:
    return rows.accepted / rows.gamma


def detectors() -> dict[str, Detector]:
    found = {
        "lr_act_0.01_1e6": likelihood_ratio(0.01, 1e6),
        "lr_warn_0.003_1e5": likelihood_ratio(0.003, 1e5),
        "lr_0_1e6": likelihood_ratio(0.0, 1e6),
        "betting_R_0.01_1e6": betting(0.01, 1e6),
    }
    if river_drift is not None:
        found |= {
            "river_ADWIN_R": of_river("ADWIN", survival_residual),
            "river_ADWIN_accept": of_river("ADWIN", accepted_share),
            "river_PageHinkley_R": of_river("PageHinkley", survival_residual),
            "river_KSWIN_R": of_river("KSWIN", survival_residual, KSWIN_ROWS),
        }
    return found


# Traffic ---------------------------------------------------------------------------------------


def drifting(rng: np.random.Generator, rows: int) -> Traffic:
    row = np.arange(rows)
    center = 1.5 * np.sin(row / 3000.0) + np.where(row > rows // 2, -1.0, 0.0)
    return heads_traffic(rng, rows, center=center, threshold=0.3)


NULLS: dict[str, Callable[[np.random.Generator, int], Traffic]] = {
    "stable": heads_traffic,
    "trimmed_with_leak": leaky_traffic,
    "drifting_but_calibrated": drifting,
}

Age = Any  # [N, 1] rows since the change, below 0 before it
Said = Callable[[Any, Age, np.random.Generator], Any]  # truth -> what the champion says


def moved(slope: float = 1.0, shift: Any = 0.0) -> Said:
    return lambda truth, age, rng: expit(slope * logit(truth) + shift)


def gradual(truth: Any, age: Age, rng: np.random.Generator) -> Any:
    return expit((1.0 + 0.6 * np.clip(age / 5000.0, 0.0, 1.0)) * logit(truth))


def oscillating(truth: Any, age: Age, rng: np.random.Generator) -> Any:
    return expit(np.where((age // 300) % 2 == 0, 1.6, 1.0) * logit(truth))


def one_segment(truth: Any, age: Age, rng: np.random.Generator) -> Any:
    return expit(np.where(rng.random(age.shape) < 0.1, 1.6, 1.0) * logit(truth))


def label_noise(truth: Any, age: Age, rng: np.random.Generator) -> Any:
    """Labels flip with probability .05: truth = .9 c + .05."""
    return np.clip((truth - 0.05) / 0.9, 0.001, 0.999)


DRIFTS: dict[str, Said] = {
    "T x 1.1": moved(1.1),
    "T x 1.25": moved(1.25),
    "T x 1.6": moved(1.6),
    "shift -0.1": moved(shift=-0.1),
    "shift -0.3": moved(shift=-0.3),
    "shift -0.8": moved(shift=-0.8),
    "tolerable shift -0.03": moved(shift=-0.03),
    "fresh: gradual to T x 1.6 over 5000 rows": gradual,
    "fresh: oscillating T x 1.6 every 300 rows": oscillating,
    "fresh: position 4 only, shift 0.7": moved(shift=np.where(np.arange(GAMMA) == 3, 0.7, 0.0)),
    "fresh: a tenth of the rows, T x 1.6": one_segment,
    "fresh: label noise 5 %": label_noise,
}


def stale(rng: np.random.Generator, said: Said, rows: int = BEFORE + AFTER) -> Observations:
    traffic = heads_traffic(rng, rows)
    age = np.arange(rows)[:, None] - BEFORE
    claimed = np.where(age >= 0, said(traffic.conditional, age, rng), traffic.conditional)
    confidence = claimed.astype(np.float32)
    survival = np.cumprod(confidence, axis=1, dtype=np.float32)
    return Observations(confidence, traffic.verified, traffic.accepted, survival)


# Measurements ----------------------------------------------------------------------------------


def best_seconds(work: Callable[[], Any]) -> float:
    spent = []
    for _ in range(3):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    return min(spent)


def cost(size: int = 200_000) -> dict[str, Any]:
    rows = heads_traffic(np.random.default_rng(0), size).served()
    levels = DriftLevels.standard(GAMMA)
    found = {
        name: len(rows) / best_seconds(lambda first=first: first(rows))
        for name, first in detectors().items()
        if not name.startswith("river")
    }
    state = levels.start()
    found["warn_and_act_and_survival"] = len(rows) / best_seconds(
        lambda: levels.update(state, rows)
    )
    if river_drift is not None:
        numbers = survival_residual(rows).tolist()
        for name, count in (("ADWIN", size), ("PageHinkley", size), ("KSWIN", size // 100)):
            detector = getattr(river_drift, name)()

            def work(detector: Any = detector, count: int = count) -> None:
                for number in numbers[:count]:
                    detector.update(number)

            found[f"river_{name}"] = count / best_seconds(work)
    return {name: round(value) for name, value in found.items()}


def alarms_of(first: Detector, rows: Observations) -> int:
    """Alarms over all rows, beginning anew after each."""
    start = count = 0
    while start < len(rows):
        found = first(rows.select(slice(start, len(rows))))
        if found is None:
            return count
        count += 1
        start += found[0] + 1
    return count


def null(rows: int, seed: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for traffic_name, make in NULLS.items():
        observed = make(np.random.default_rng([10, seed]), rows).served()
        for name, first in detectors().items():
            used = observed.select(slice(0, KSWIN_ROWS)) if "KSWIN" in name else observed
            alarms = alarms_of(first, used)
            result.setdefault(name, {})[traffic_name] = {"alarms": alarms, "rows": len(used)}
    return result


def run_length(seeds: int, cut: int = 20_000) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for traffic_name, make in NULLS.items():
        for name, first in (
            ("lr_0_1e3", likelihood_ratio(0.0, 1e3)),
            ("betting_R_0_1e3", betting(0.0, 1e3)),
        ):
            lengths = []
            for seed in range(seeds):
                found = first(make(np.random.default_rng([11, seed]), cut).served())
                lengths.append(cut if found is None else found[0] + 1)
            result[f"{name}, {traffic_name}"] = {
                "mean_rows": round(float(np.mean(lengths))),
                "share_before_1000": round(float((np.array(lengths) < 1000).mean()), 4),
                "runs": seeds,
            }
    return result


def delay(seeds: int, after: int = AFTER) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for drift_name, said in DRIFTS.items():
        streams = [
            stale(np.random.default_rng([12, seed]), said, BEFORE + after) for seed in range(seeds)
        ]
        for name, first in detectors().items():
            if "KSWIN" in name:  # it alarms every few hundred rows: a delay would mean nothing
                continue
            alarms = [found for found in map(first, streams) if found is not None]
            late = [found for found in alarms if found[0] >= BEFORE]
            result.setdefault(drift_name, {})[name] = {
                "detected": len(late),
                "before_the_change": len(alarms) - len(late),
                "runs": seeds,
                "mean_delay": round(float(np.mean([row + 1 - BEFORE for row, _ in late])))
                if late
                else None,
                "median_change_point_error": round(
                    float(np.median([point - BEFORE for _, point in late]))
                )
                if late
                else None,
            }
    return result


def long_run(rows: int) -> dict[str, Any]:
    levels = DriftLevels.standard(GAMMA)
    state, raised = levels.start(), []
    for start, batch in _batches(rows):
        step = levels.update(state, batch)
        state = step.state
        raised += [[str(level), start] for level in step.verdict.raised]
    return {"rows": rows, "raised": raised, "evidence": step.verdict.to_dict()}


SIDES = {64: 100, 8: 60, 1: 60}  # runs by requests side by side
REMEDIES = ((1.0, 1), (1.5, 1), (2.0, 1), (3.3, 1), (1.0, 3), (1.0, 100))  # design effect, A times


def dependence(rows: int = 31_006, delay_seeds: int = 12) -> dict[str, Any]:
    """Shares of runs with an alarm while calibration holds, and delays of act, by remedy."""
    levels = {
        f"design effect {effect:g}, A x {times}": DriftLevels.standard(
            GAMMA, threshold=1e6 * times, warn_threshold=1e5 * times, design_effect=effect
        )
        for effect, times in REMEDIES
    }
    false_alarms = {
        f"{side} side by side": _false_alarms(levels, side, runs, rows)
        for side, runs in SIDES.items()
    }
    delays = {
        name: _delays(levels, slope, shift, delay_seeds)
        for name, slope, shift in (
            ("T x 1.25", 1.25, 0.0),
            ("T x 1.6", 1.6, 0.0),
            ("shift -0.3", 1.0, -0.3),
        )
    }
    bounds = {"act": rows / 1e6, "warn": rows / 1e5}
    return {"rows": rows, "bounds": bounds, "false_alarms": false_alarms, "mean_delays": delays}


def _false_alarms(
    levels: dict[str, DriftLevels], side_by_side: int, runs: int, rows: int
) -> dict[str, Any]:
    warned, acted = dict.fromkeys(levels, 0), dict.fromkeys(levels, 0)
    for seed in range(runs):
        rng = np.random.default_rng([17, side_by_side, seed])
        observed = shared_luck_traffic(rng, rows, side_by_side=side_by_side).served()
        for name, chosen in levels.items():
            verdict = chosen.update(chosen.start(), observed).verdict
            warned[name] += verdict.warn.alarm is not None
            acted[name] += any(each.alarm is not None for each in verdict.acting)
    return {"runs": runs} | {
        name: {
            "warn_share": round(warned[name] / runs, 4),
            "act_share": round(acted[name] / runs, 4),
        }
        for name in levels
    }


def _delays(
    levels: dict[str, DriftLevels], slope: float, shift: float, seeds: int
) -> dict[str, float | None]:
    """Mean rows to an act alarm; None where a run had none within 10,000 rows."""
    found: dict[str, list[int | None]] = {name: [] for name in levels}
    for seed in range(seeds):
        traffic = shared_luck_traffic(np.random.default_rng([18, seed]), BEFORE + 10_000)
        stream = miscalibrated(traffic, BEFORE, slope=slope, shift=shift)
        for name, chosen in levels.items():
            verdict = chosen.update(chosen.start(), stream).verdict
            rows = [each.alarm.row for each in verdict.acting if each.alarm is not None]
            found[name].append(min(rows) + 1 - BEFORE if rows else None)
    return {
        name: None if None in waited else round(float(np.mean([w for w in waited if w])))
        for name, waited in found.items()
    }


def _batches(rows: int) -> Iterator[tuple[int, Observations]]:
    rng = np.random.default_rng(13)
    for start in range(0, rows, BATCH):
        count = min(BATCH, rows - start)
        yield start, heads_traffic(rng, count, threshold=0.3 if start % 100_000 else None).served()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("numpy", "scipy", "river"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = ("cost", "null", "run_length", "delay", "long", "dependence")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--run-length-seeds", type=int, default=300)
    parser.add_argument("--null-rows", type=int, default=1_000_000)
    parser.add_argument("--long-rows", type=int, default=5_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    work: dict[str, Callable[[], Any]] = {
        "cost": cost,
        "null": lambda: null(options.null_rows, 0),
        "run_length": lambda: run_length(options.run_length_seeds),
        "delay": lambda: delay(options.seeds),
        "long": lambda: long_run(options.long_rows),
        "dependence": dependence,
    }
    result: dict[str, Any] = {
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "versions": versions(),
    }
    for part in options.only:
        start = time.process_time()
        result[part] = work[part]()
        result.setdefault("cpu_seconds", {})[part] = round(time.process_time() - start, 1)
    text = json.dumps(result, indent=2, allow_nan=False)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
