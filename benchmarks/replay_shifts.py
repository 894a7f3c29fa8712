"""The closed loop on recorded shifts, and how far apart false alarms really are.

Every shift of issue 4 on the shipped telemetry: math → chat → code, sampling temperature
1.0 → 0.6 → 0, the earlier drafter in place of the later one (announced and not), and, labelled
synthetic, logits times 1.6. Each is replayed through fold, fit, gate and watch; found, or not
found, is what is written. Then the autocorrelation of residuals within requests, and how often the
detectors alarm on recorded rows under a champion fitted on these very rows: requests that all begin
together, requests out of phase, rows permuted, and labels drawn afresh, by design effect.

Run: ``python benchmarks/replay_shifts.py [--out FOLDER] [--only NAME …] [--deals N]``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measurement import machine_facts
from calib.clusters import cluster_codes
from calib.formats.arrow import read_parquet
from calib.records import AcceptanceRecords
from calib.segment_fitting import fit_segments
from calib.segment_sketches import SegmentSketches
from calib.shipped import shipped_telemetry, shipped_telemetry_early
from monitoring.detectors.levels import DriftLevels
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import conditional_residual
from monitoring.loop_settings import LoopSettings
from monitoring.replay import Replay, ReplayOptions
from monitoring.replay_errors import served_changes
from monitoring.replay_report import replay_document
from monitoring.replay_shifts import Stream, deal, interleaved

GAMMA = 7
BASELINE_ROWS = 4000
# The earlier drafter's recording is short: a baseline of 4,000 rows would leave a fifth of it.
SWAP_BASELINE_ROWS = 2000
Floats = NDArray[np.float64]


def streams() -> dict[str, Stream]:
    """The shifts by name."""
    main = read_parquet(shipped_telemetry(), GAMMA)
    early = read_parquet(shipped_telemetry_early(), GAMMA)
    recording = Stream.of(main)
    return {
        "no_shift": recording,
        "domains": recording.ordered("domain", ["math", "chat", "code"]),
        "temperatures": recording.ordered("sampling_temperature", ["1.0", "0.6", "0"]),
        "swap_announced": recording.then(early, "earlier drafter", announced=True),
        "swap_unannounced": recording.then(early, "earlier drafter", announced=False),
        "scaled_1.6": recording.scaled(1.6, 16_000),
    }


def replayed(stream: Stream, baseline_rows: int = BASELINE_ROWS) -> dict[str, Any]:
    """One shift through the whole loop."""
    settings = LoopSettings(refit_seconds=0.0)
    options = ReplayOptions(baseline_rows=baseline_rows)
    result = Replay(stream.records, stream.stretches, settings=settings, options=options).run()
    changes = served_changes(stream.records, result)
    return replay_document(stream, result, changes, settings.to_dict())


def by_request(
    records: AcceptanceRecords,
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int64]]:
    """Request of every row, rows ordered by request and step, and the steps."""
    if records.request is None or records.step is None:
        raise SystemExit("the recording names neither requests nor steps")
    codes = cluster_codes(records.request)
    return codes, np.lexsort((records.step, codes)), records.step


def autocorrelation(records: AcceptanceRecords, c: NDArray[np.float32]) -> dict[str, Any]:
    """Correlation of row residuals within requests by lag, and the share that requests explain."""
    rows = Observations(c, records.verified, records.accepted)
    residual = conditional_residual(rows)
    residual = residual - residual.mean()
    codes, order, steps = by_request(records)
    sorted_codes, values = codes[order], residual[order]
    variance = float((values**2).mean())
    lags = {}
    for lag in (1, 2, 4, 8, 16, 32):
        same = sorted_codes[lag:] == sorted_codes[:-lag]
        pairs = values[lag:][same] * values[:-lag][same]
        lags[str(lag)] = {
            "correlation": float(pairs.mean() / variance),
            "standard_error": float(pairs.std() / variance / math.sqrt(len(pairs))),
        }
    sizes = np.bincount(sorted_codes)
    sums = np.bincount(sorted_codes, values)
    between = float((sums**2).sum() - sizes.sum() * variance) / float((sizes**2 - sizes).sum())
    mean_size = float((sizes**2).sum() / sizes.sum())
    return {
        "lags": lags,
        "requests": len(sizes),
        "mean_rows_of_a_row's_request": mean_size,
        "intraclass_correlation": between / variance,
        "design_effect_of_request_sums": 1.0 + (mean_size - 1.0) * between / variance,
        "neighbours_in_the_stream": _stream_correlation(steps, residual),
    }


def _stream_correlation(step: NDArray[np.int64], residual: Floats) -> dict[str, float]:
    """Of means of 64 neighbouring rows: what a block of the detectors sees of its predecessor."""
    order = np.argsort(step, kind="stable")
    blocks = residual[order][: len(residual) // 64 * 64].reshape(-1, 64).mean(axis=1)
    blocks = blocks - blocks.mean()
    return {
        "lag_1_of_64_row_means": float((blocks[1:] * blocks[:-1]).mean() / (blocks**2).mean()),
        "variance_ratio_of_64_row_means": float(blocks.var() * 64.0 / residual.var()),
    }


def in_sample_confidence(records: AcceptanceRecords) -> NDArray[np.float32]:
    """Conditional confidences fitted on these very rows, by segment: as calibrated as it gets."""
    return fit_segments(SegmentSketches.from_records(records)).conditional(records)


REMEDIES = ((1.0, 1), (1.5, 1), (2.0, 1), (3.3, 1), (1.0, 3), (1.0, 100))  # design effect, A times


def false_alarms(records: AcceptanceRecords, deals: int) -> dict[str, Any]:
    """Share of fleets with an alarm at A = 10⁶ (warn 10⁵), by how the recorded rows are arranged.

    ``dealt``: all requests begin together; ``out_of_phase``: each slot begins somewhere within a
    request; ``rows_permuted``: no requests at all; ``labels_drawn``: labels anew from the champion.
    """
    levels = {
        f"design effect {effect:g}, A x {times}": DriftLevels.standard(
            GAMMA,
            threshold=1e6 * times,
            warn_threshold=1e5 * times,
            survival=False,
            design_effect=effect,
        )
        for effect, times in REMEDIES
    }
    rng = np.random.default_rng(0)
    base = in_sample_confidence(records)
    counts: dict[str, dict[str, list[int]]] = {}
    for seed in range(1, deals + 1):
        dealt, _ = deal(records, seed)
        orders = {
            "dealt": dealt,
            "out_of_phase": out_of_phase(records, seed),
            "rows_permuted": rng.permutation(len(records)),
            "labels_drawn": dealt,
        }
        for kind, order in orders.items():
            c, verified, accepted = base[order], records.verified[order], records.accepted[order]
            if kind == "labels_drawn":
                drawn = (rng.random(c.shape) < c).astype(np.uint8)
                accepted = np.minimum(np.cumprod(drawn, axis=1).sum(axis=1), verified)
            rows = Observations(c, verified, accepted.astype(np.uint8))
            for name, chosen in levels.items():
                verdict = chosen.update(chosen.start(), rows).verdict
                count = counts.setdefault(kind, {}).setdefault(name, [0, 0])
                count[0] += verdict.warn.alarm is not None
                count[1] += verdict.act.alarm is not None
    shares = {
        kind: {
            name: {"warn_share": warn / deals, "act_share": act / deals}
            for name, (warn, act) in found.items()
        }
        for kind, found in counts.items()
    }
    bounds = {"warn": min(1.0, len(records) / 1e5), "act": len(records) / 1e6}
    return {"deals": deals, "rows_a_deal": len(records), "bounds": bounds, **shares}


def out_of_phase(records: AcceptanceRecords, seed: int, slots: int = 64) -> NDArray[np.intp]:
    """Order of a fleet that has long been running: slots begin within a request, and end together.

    Rows after the first slot is empty are left out: fewer requests side by side depend more.
    """
    rng = np.random.default_rng(seed)
    codes, order, _ = by_request(records)
    requests = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    queues: list[list[NDArray[np.intp]]] = [[] for _ in range(slots)]
    load = np.zeros(slots, dtype=np.int64)
    for index in rng.permutation(len(requests)).tolist():
        slot = int(load.argmin())
        queues[slot].append(requests[index])
        load[slot] += len(requests[index])
    turned = [np.roll(rows, -int(rng.integers(len(rows)))) for rows in map(np.concatenate, queues)]
    return np.stack([rows[: load.min()] for rows in turned], axis=1).ravel()


def first_steps(records: AcceptanceRecords, c: NDArray[np.float32]) -> dict[str, Any]:
    """Mean accepted tokens beyond the forecast by step within a request: what no head sees."""
    residual = conditional_residual(Observations(c, records.verified, records.accepted)) * GAMMA
    codes, order, _ = by_request(records)
    sizes = np.bincount(codes)
    place = np.empty(len(records), dtype=np.int64)
    place[order] = np.arange(len(records)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    found = {}
    for low, high in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64), (64, 128)):
        own = residual[(place >= low) & (place < high)]
        error = float(own.std() / math.sqrt(len(own)))
        found[f"{low}-{high - 1}"] = {"mean": float(own.mean()), "standard_error": error}
    return found


def hidden_difficulty(intraclass: float, rows: int = 200_000) -> dict[str, Any]:
    """False alarms per million rows when requests share hidden luck of the measured size.

    64 requests side by side, 84 rows each; a normal effect on the log odds that the head does not
    see, with the standard deviation that gives the measured intraclass correlation; the head is
    calibrated on average.
    """
    rng = np.random.default_rng(7)
    spread = _spread_for(intraclass)
    found: dict[str, Any] = {"log_odds_standard_deviation": spread, "rows": rows}
    levels = DriftLevels.standard(GAMMA, threshold=1e6, survival=False)
    for name, size in (("measured", spread), ("none", 0.0)):
        requests = rows // 84 + 64
        effect = rng.normal(0.0, size, requests)
        owner = (np.arange(rows) % 64) + 64 * (np.arange(rows) // (64 * 84))
        logits = rng.normal(0.0, 1.3, (rows, GAMMA)) - 0.4
        grid = rng.normal(0.0, size, 4001)
        # Marginal probability given what the head sees: the effect is averaged out.
        table = np.linspace(-8.0, 8.0, 801)
        mean = expit(table[:, None] + grid).mean(axis=1)
        c = np.interp(logits, table, mean).astype(np.float32)
        truth = expit(logits + effect[owner][:, None])
        labels = rng.random((rows, GAMMA)) < truth
        accepted = np.cumprod(labels, axis=1).sum(axis=1).astype(np.uint8)
        verified = np.full(rows, GAMMA, dtype=np.uint8)
        verdict = levels.update(levels.start(), Observations(c, verified, accepted)).verdict
        found[name] = {
            "warn_row": None if verdict.warn.alarm is None else verdict.warn.alarm.row,
            "act_row": None if verdict.act.alarm is None else verdict.act.alarm.row,
            "act_evidence_log10": verdict.act.log_evidence / math.log(10.0),
        }
    return found


def _spread_for(intraclass: float) -> float:
    """Standard deviation on the log odds: var(p(1−p)·effect) against p(1−p) at p = .38."""
    variance = 0.38 * 0.62
    return math.sqrt(max(intraclass, 0.0) / variance)


def main() -> None:
    """Replay what is asked for and write one JSON file each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/replay"))
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--deals", type=int, default=100)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, stream in streams().items():
        if options.only is None or name in options.only:
            baseline = SWAP_BASELINE_ROWS if name == "swap_announced" else BASELINE_ROWS
            _write(options.out / f"{name}.json", replayed(stream, baseline))
    if options.only is None or "dependence" in options.only:
        records = interleaved(read_parquet(shipped_telemetry(), GAMMA))
        measured = autocorrelation(records, in_sample_confidence(records))
        document = {
            "autocorrelation": measured,
            "first_steps": first_steps(records, in_sample_confidence(records)),
            "hidden_difficulty": hidden_difficulty(measured["intraclass_correlation"]),
            "false_alarms": false_alarms(records, options.deals),
        }
        _write(options.out / "dependence.json", document)


def _write(path: Path, document: dict[str, Any]) -> None:
    document = {**document, "machine": machine_facts()}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stderr.write(f"{path}\n")


if __name__ == "__main__":
    main()
