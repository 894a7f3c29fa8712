"""What readers see of a drafter's loop: evidence against thresholds, in one canonical JSON object.

It is stored beside the state and answered by ``GET /v1/drafters/{drafter}/drift``; dashboard,
metrics and alerts read it. Every number is finite; what is not known is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from calib.canonical_json import canonical_json
from monitoring.challenger_trial import gate_of, watch_of
from monitoring.data_quality_monitors import QualityStatus, QualityVerdict
from monitoring.detectors.change_point import estimate_change_point
from monitoring.detectors.e_cusum import BLOCK_ROWS, CusumState, EvidenceCusum
from monitoring.detectors.verdict import ChangePoint
from monitoring.drift_streams import (
    act_tolerance,
    flagged_segments,
    pooled_detectors,
    segment_detector,
)
from monitoring.explanations import TrafficSummary, kolmogorov_smirnov, population_stability_index
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, StreamMarks, Trial, Watch
from monitoring.published_document import iso_time

__all__ = ["drift_document", "drift_values"]

_LOG10: Final = 1.0 / math.log(10.0)
_LARGEST_LOG10: Final = 300.0
_MILLION: Final = 1e6
_MIX_TAGS: Final = 40  # shares named at most, largest change first


def drift_document(
    state: MonitorState, *, standard_error: float | None, settings: LoopSettings
) -> bytes:
    """Canonical JSON (RFC 8785) of :func:`drift_values`."""
    return canonical_json(drift_values(state, standard_error=standard_error, settings=settings))


def drift_values(
    state: MonitorState, *, standard_error: float | None, settings: LoopSettings
) -> dict[str, Any]:
    """The document as plain JSON values.

    Args:
        state: after the newest fold.
        standard_error: of the champion's fit, as in
            :class:`monitoring.revision_predictions.RevisionPredictions`.
        settings: of the loop.
    """
    return {
        "drafter": state.drafter,
        "revision": max(state.champion, 0),
        "publication": state.publication,
        "status": _status(state, settings),
        "updated_at": iso_time(state.updated_at),
        "consumed_through": state.consumed_through,
        "rows": state.rows,
        "rows_total": state.rows_total,
        "rows_left_out": {
            "duplicates": state.duplicates,
            "held": state.held,
            **{f"excluded_{reason}": count for reason, count in sorted(state.excluded.items())},
        },
        "levels": {
            "warn": _level(settings.warn_threshold),
            "act": _level(settings.act_threshold),
        },
        "dependence": _dependence(state, settings),
        "exploration": {
            "share": settings.exploration(warned=state.warned),
            "raised": settings.raises_exploration(warned=state.warned),
        },
        "tests": _tests(state, standard_error, settings),
        "history": [
            {
                "at": iso_time(point.at),
                "rows": point.rows,
                "evidence_log10_max": _number(point.evidence_log10_max),
                "ece": _number(point.ece),
                "ece_low": _number(point.ece_low),
                "ece_high": _number(point.ece_high),
            }
            for point in state.history
        ],
        "data_quality": [_quality(verdict) for verdict in state.verdicts],
        "explanations": _explanations(state),
        "challenger": None if state.trial is None else _challenger(state, state.trial, settings),
        "watch": None if state.watch is None else _watch(state, state.watch, settings),
        "cool_down_until": _after_rows(state, state.cool_down_rows),
        "last_decision": None
        if state.last_decision is None
        else {
            "kind": state.last_decision[0],
            "at": iso_time(state.last_decision[1]),
            "reason": state.last_decision[2],
        },
    }


def _status(state: MonitorState, settings: LoopSettings) -> str:
    if any(verdict.holds_recalibration for verdict in state.verdicts):
        return "held"
    if state.acting:
        return "drift"
    if "warn" in state.announced:
        return "warning"
    return "collecting" if state.rows < settings.minimum_rows else "calibrated"


def _dependence(state: MonitorState, settings: LoopSettings) -> dict[str, Any]:
    """How much rows of one request share, beside the design effect that evidence allows for."""
    found = state.dependence.estimate()
    return {
        "intraclass": None if found is None else _number(found.intraclass),
        "design_effect": None if found is None else _number(found.design_effect),
        "requests": state.dependence.requests + len(state.dependence.keys),
        "rows": state.dependence.rows,
        "setting": settings.design_effect,
    }


def _level(threshold: float) -> dict[str, float]:
    return {"threshold": threshold, "false_alarms_per_million_rows": _MILLION / threshold}


def _tests(
    state: MonitorState, standard_error: float | None, settings: LoopSettings
) -> list[dict[str, Any]]:
    levels = pooled_detectors(state.gamma, standard_error, settings)
    drift = levels.start() if state.drift is None else state.drift
    tolerance = act_tolerance(standard_error, settings)
    warn = levels.warn._cusum
    act = levels.act._cusum
    evidence = _log_evidence(act, drift.act)
    detector = "betting" if settings.acting == "betting" else "likelihood_ratio"
    common: dict[str, Any] = {"detector": detector, "quantity": "conditional", "segment": None}
    thresholds = {"warn": _log10(settings.warn_threshold), "act": _log10(act.threshold)}
    found = [
        {
            **common,
            "scope": "pooled",
            "position": None,
            "warn_evidence_log10": _number(_log_evidence(warn, drift.warn) * _LOG10),
            **_evidence(evidence, thresholds),
            "status": "alarm"
            if "act" in state.announced
            else "warning"
            if "warn" in state.announced
            else "calm",
            "rows": drift.act.rows,
            "tolerance": tolerance,
            "mean_residual": state.residuals.pooled,
            "change_point": _change(act, drift.act, state.marks),
        }
    ]
    if levels.survival is not None and drift.survival is not None:
        survival = levels.survival._cusum
        log = _log_evidence(survival, drift.survival)
        bounds = {"warn": _log10(survival.threshold), "act": _log10(survival.threshold)}
        found.append(
            {
                **common,
                "detector": "betting",
                "quantity": "survival",
                "scope": "pooled",
                "position": None,
                **_evidence(log, bounds),
                "status": "alarm" if drift.survival.alarm is not None else "calm",
                "rows": drift.survival.rows,
                "tolerance": settings.tolerance,
                "mean_residual": state.residuals.of_survival,
                "change_point": _change(survival, drift.survival, state.marks),
            }
        )
    if detector == "likelihood_ratio":
        found += _positions(state, act, drift.act, common, tolerance)
    return found + _segments(state, standard_error, settings)


def _positions(
    state: MonitorState,
    act: EvidenceCusum,
    stream: CusumState,
    common: Mapping[str, Any],
    tolerance: float,
) -> list[dict[str, Any]]:
    """Evidence of each position: the mixture of the alternatives that name it alone."""
    found = []
    # γ such mixtures side by side: at A·γ each, the first of them to pass keeps the level.
    threshold = _log10(act.threshold * state.gamma)
    for position in range(1, state.gamma + 1):
        own = [i for i, name in enumerate(act.names) if name.endswith(f"position {position}")]
        if not own:
            continue
        values = stream.log_values[own]
        log = float(np.logaddexp.reduce(values)) - math.log(len(own)) + math.log(BLOCK_ROWS)
        log = log if stream.rows >= BLOCK_ROWS else 0.0
        point = estimate_change_point(values, stream.starts[own])
        measured = _evidence(log, {"warn": threshold, "act": threshold})
        status = "alarm" if measured["evidence_log10"] >= threshold else "calm"
        found.append(
            {
                **common,
                "scope": "position",
                "position": position,
                **measured,
                "status": status,
                "rows": stream.rows,
                "tolerance": tolerance,
                "mean_residual": state.residuals.of_position(position),
                "change_point": _point(point, stream.rows, state.marks) if log > 0.0 else None,
            }
        )
    return found


def _segments(
    state: MonitorState, standard_error: float | None, settings: LoopSettings
) -> list[dict[str, Any]]:
    detector = segment_detector(state.gamma, standard_error, settings)
    flagged = flagged_segments(state, standard_error, settings)
    threshold = flagged.log_threshold * _LOG10
    return [
        {
            "scope": "segment",
            "position": None,
            "segment": dict(stream.tags) or {"segment": name},
            "detector": "likelihood_ratio",
            "quantity": "conditional",
            **_evidence(
                _log_evidence(detector._cusum, stream.state), {"warn": threshold, "act": threshold}
            ),
            "status": "alarm" if name in flagged.flagged else "calm",
            "rows": stream.state.rows,
            "tolerance": detector.tolerance,
            "mean_residual": state.residuals.of_segment(name),
            "change_point": _change(detector._cusum, stream.state, stream.marks),
        }
        for name, stream in sorted(state.segments.items())
    ]


def _log_evidence(cusum: EvidenceCusum, stream: CusumState) -> float:
    """0 before the first whole block: the stake that a run begins with is no evidence."""
    return cusum.log_evidence(stream) if stream.rows >= BLOCK_ROWS else 0.0


def _evidence(log: float, thresholds: Mapping[str, float]) -> dict[str, Any]:
    decimal = max(-_LARGEST_LOG10, min(log * _LOG10, 1e6))
    return {
        "evidence": float(10.0 ** min(decimal, _LARGEST_LOG10)),
        "evidence_log10": _number(decimal),
        "threshold_log10": dict(thresholds),
    }


def _change(cusum: EvidenceCusum, stream: CusumState, marks: StreamMarks) -> dict[str, Any] | None:
    if stream.alarm is not None:
        return _point(stream.alarm.change_point, stream.rows, marks)
    if not stream.rows or cusum.log_evidence(stream) <= math.log(BLOCK_ROWS):
        return None  # no evidence, no change to date
    weighted = np.log(cusum.weights) + stream.log_values
    return _point(estimate_change_point(weighted, stream.starts), stream.rows, marks)


def _point(point: ChangePoint, rows: int, marks: StreamMarks) -> dict[str, Any]:
    found = marks.at(point.row)
    return {"row": rows - point.row, "since": None if found is None else iso_time(found[1])}


def _quality(verdict: QualityVerdict) -> dict[str, Any]:
    return {
        "monitor": str(verdict.fault),
        "status": "held" if verdict.status is QualityStatus.ALERT else "calm",
        "value": _number(verdict.value),
        "limit": _number(verdict.limit),
        "message": verdict.reason,
        "engine": verdict.engine,
    }


def _explanations(state: MonitorState) -> dict[str, Any]:
    nothing: dict[str, Any] = {"psi": [], "ks": [], "acceptance": {}, "verified_length": {}}
    if state.reference is None or not state.current:
        return nothing | {"mix": {}}
    before, after = state.reference, state.current[0]
    for part in state.current[1:]:
        after = after + part
    pairs = list(zip(before.logit_counts, after.logit_counts, strict=True))
    return {
        "psi": [
            {"position": k, "value": _number(population_stability_index(*pair))}
            for k, pair in enumerate(pairs, 1)
        ],
        "ks": [
            {"position": k, "value": _number(kolmogorov_smirnov(*pair))}
            for k, pair in enumerate(pairs, 1)
        ],
        "acceptance": {
            "reference": _number(before.acceptance.mean_rate),
            "current": _number(after.acceptance.mean_rate),
        },
        "verified_length": {"reference": _verified(before), "current": _verified(after)},
        "mix": _mix(before, after),
    }


def _verified(summary: TrafficSummary) -> float | None:
    rows = summary.acceptance.rows
    return summary.acceptance.verified_tokens / rows if rows else None


def _mix(before: TrafficSummary, after: TrafficSummary) -> dict[str, Any]:
    found = []
    for tag in sorted(set(before.tags) | set(after.tags)):
        old, new = before.tags.get(tag, {}), after.tags.get(tag, {})
        totals = sum(old.values()) or 1, sum(new.values()) or 1
        for value in sorted(set(old) | set(new)):
            shares = old.get(value, 0) / totals[0], new.get(value, 0) / totals[1]
            found.append((f"{tag}={value}", *shares))
    found.sort(key=lambda entry: (-abs(entry[2] - entry[1]), entry[0]))
    return {
        name: {"reference": old_share, "current": new_share}
        for name, old_share, new_share in found[:_MIX_TAGS]
    }


def _challenger(state: MonitorState, trial: Trial, settings: LoopSettings) -> dict[str, Any]:
    gate = gate_of(state.gamma, trial, settings)
    return {
        "revision": trial.revision,
        "status": trial.status,
        "wealth_log10": _number(gate.log_evidence(trial.gate) * _LOG10),
        "threshold_log10": gate.log_threshold * _LOG10,
        "rows": trial.gate.rows,
        "reason": trial.reason or gate.decide(trial.gate).reason,
    }


def _watch(state: MonitorState, watch: Watch, settings: LoopSettings) -> dict[str, Any]:
    found = watch_of(state.gamma, watch, settings)
    return {
        "revision": watch.revision,
        "previous": watch.previous,
        "evidence_log10": _number(found.log_evidence(watch.state) * _LOG10),
        "threshold_log10": -_log10(settings.alpha),
        "rows": watch.state.rows,
        "until": _after_rows(state, settings.watch_rows - watch.state.rows),
    }


def _after_rows(state: MonitorState, rows: int) -> str | None:
    """When so many more rows have come, at the pace of those so far; null for none or no pace."""
    span = state.updated_at - state.started_at
    if rows <= 0 or not state.rows_total or span <= 0.0:
        return None
    seconds = rows * span / state.rows_total
    return iso_time(min(state.updated_at + seconds, state.updated_at + 3.15e7))


def _log10(value: float) -> float:
    return math.log10(value)


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
