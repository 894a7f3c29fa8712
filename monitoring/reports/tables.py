"""Reports as pandas tables: one row per position or slice, columns named for what they hold.

Errors, rates and gaps are in [0, 1]; a null is NaN here, as pandas has it, and null again in JSON.
"""

from __future__ import annotations

from typing import Any, Literal

import pandas as pd

from calib.position_metrics import PositionMetrics
from monitoring.reports.evaluation_report import Comparison, EvaluationReport, Judgement
from monitoring.reports.fit_report import FitReport

__all__ = [
    "acceptance_table",
    "leak_table",
    "position_table",
    "reference_table",
    "segment_position_table",
    "segment_table",
]

View = Literal["conditional", "survival"]

_METRICS = ("ece", "debiased_ece", "debiased_ece_low", "debiased_ece_high", "auc")


def position_table(comparison: Comparison, view: View) -> pd.DataFrame:
    """Raw against calibrated confidence, one row per position (index ``position``, from 1).

    Args:
        comparison: whose numbers.
        view: ``"conditional"`` or ``"survival"``.

    Returns:
        ``rows``, ``effective_rows``, ``observed``, ``raw_mean``, ``calibrated_mean``,
        ``null_level`` (the ECE that a perfect model would show), and ``raw_…`` and
        ``calibrated_…`` of ece, debiased_ece with its interval, and auc.
    """
    raw = getattr(comparison.raw.report, view)
    calibrated = getattr(comparison.calibrated.report, view)
    rows = [
        {"position": position, **_pair(before, after)}
        for position, (before, after) in enumerate(zip(raw, calibrated, strict=True), start=1)
    ]
    return _frame(rows, "position")


def segment_table(report: EvaluationReport, view: View = "survival") -> pd.DataFrame:
    """Raw against calibrated confidence, one row per slice (index ``segment``), all rows first.

    Returns:
        ``rows``, ``accepted_length``, ``null_level``, and ``raw_…`` and ``calibrated_…`` of ece and
        auc (means over positions by their rows) and block, block_low, block_high (the debiased
        error over all positions); ``pooled`` says why a slice has no numbers.
    """
    rows: list[dict[str, Any]] = [
        {"segment": "all", "rows": report.rows, **_means(report.overall, view)}
    ]
    for part in report.segments:
        numbers = {} if part.comparison is None else _means(part.comparison, view)
        rows.append({"segment": part.name, "rows": part.rows, "pooled": part.pooled, **numbers})
    return _frame(rows, "segment")


def segment_position_table(report: EvaluationReport, view: View = "survival") -> pd.DataFrame:
    """:func:`position_table` of every slice with numbers, indexed by ``segment`` and ``position``.

    Empty where no slice has any.
    """
    parts = {
        part.name: position_table(part.comparison, view)
        for part in report.segments
        if part.comparison is not None
    }
    return pd.concat(parts, names=["segment"]) if parts else pd.DataFrame()


def leak_table(report: EvaluationReport) -> pd.DataFrame:
    """What the next logit knows: one row per position, ``pooled`` last (index ``position``).

    Returns:
        ``rows`` and the numbers of :class:`calib.survival_leak.LeakEstimate` with their intervals.
    """
    rows = []
    for estimate in (*report.leak.positions, report.leak.pooled):
        values = estimate.to_dict()
        position = values.pop("position")
        rows.append({"position": "pooled" if position is None else str(position), **values})
    return _frame(rows, "position")


def acceptance_table(report: EvaluationReport) -> pd.DataFrame:
    """Acceptance of all judged rows, one row per position (index ``position``, from 1).

    Returns:
        ``reached``, ``observed``, ``survived`` (rows), ``coverage``, ``marginal``, ``conditional``
        (rates), and with soft labels ``soft_label`` (mean c* of the rows where it is known and
        acceptance was observed) and ``soft_label_gap`` (how far acceptance lies above it there).
    """
    frame = _frame(report.overall.acceptance.to_dict()["positions"], "position")
    if report.soft_labels is not None:
        known = report.soft_labels.positions
        frame["soft_label"] = pd.to_numeric([found.mean_soft_label for found in known])
        frame["soft_label_gap"] = pd.to_numeric([found.gap for found in known])
    return frame


def reference_table(report: FitReport, view: View = "survival") -> pd.DataFrame:
    """Raw, calibrated and the flexible references side by side (index ``model``).

    Returns:
        ``ece``, ``null_level``, ``log_loss``, ``auc`` (means over positions by their rows),
        ``block``, ``block_low`` and ``block_high``.
    """
    overall = report.evaluation.overall
    served = "temperatures" if report.method == "affine" else report.method
    models = {"raw": overall.raw, served: overall.calibrated, **report.references}
    rows = []
    for name, judgement in models.items():
        means = getattr(judgement.report, view).weighted_mean
        numbers = {key: getattr(means, key) for key in ("ece", "null_level", "log_loss", "auc")}
        rows.append({"model": name, **numbers, **_block(judgement, view)})
    return _frame(rows, "model")


def _pair(before: PositionMetrics, after: PositionMetrics) -> dict[str, Any]:
    shared = {
        "rows": after.n,
        "effective_rows": after.effective_n,
        "observed": after.mean_label,
        "raw_mean": before.mean_prediction,
        "calibrated_mean": after.mean_prediction,
        "null_level": after.null_level,
    }
    raw = {f"raw_{name}": getattr(before, name) for name in _METRICS}
    return {**shared, **raw, **{f"calibrated_{name}": getattr(after, name) for name in _METRICS}}


def _means(comparison: Comparison, view: View) -> dict[str, Any]:
    numbers: dict[str, Any] = {"accepted_length": comparison.acceptance.accepted_length}
    numbers["null_level"] = getattr(comparison.calibrated.report, view).weighted_mean.null_level
    for name, judgement in (("raw", comparison.raw), ("calibrated", comparison.calibrated)):
        means = getattr(judgement.report, view).weighted_mean
        numbers |= {f"{name}_ece": means.ece, f"{name}_auc": means.auc}
        numbers |= {f"{name}_{key}": value for key, value in _block(judgement, view).items()}
    return numbers


def _block(judgement: Judgement, view: View) -> dict[str, float | None]:
    error = judgement.block[view]
    return {"block": error.value, "block_low": error.low, "block_high": error.high}


def _frame(rows: list[dict[str, Any]], index: str) -> pd.DataFrame:
    frame = pd.DataFrame(rows).set_index(index)
    for name in frame.columns.difference(["pooled", "reason", "is_present"]):
        frame[name] = pd.to_numeric(frame[name])
    return frame
