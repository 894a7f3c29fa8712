"""Evaluate a calibration on telemetry: every position, in the conditional and the survival view.

* **Conditional view**: c_k against [k <= n] on rows with k <= min(n + 1, ℓ).
* **Survival view**: a_k against [n >= k] on rows with ℓ >= k. Zeros of rows with n < ℓ < k are
  known too, but *because* of the outcome; they are left out.

Both are needed: errors of single positions can cancel in the product, and a perfect conditional
does not make a perfect product. Rows that :meth:`AcceptanceRecords.usable` excludes take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calib.calibration_report import CalibrationReport, MetricMeans, ViewReport
from calib.clusters import cluster_codes
from calib.confidence_model import (
    ConfidenceModel,
    conditional_log_odds,
    survival_log_odds,
)
from calib.errors import ConfigurationError, InvalidInputError
from calib.labels import (
    LabelKind,
    conditional_labels,
    observed_mask,
    survival_informed_mask,
    survival_labels,
)
from calib.metrics import calibration_metrics
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS, one_of

__all__ = [
    "SEGMENT_TAGS",
    "CalibrationReport",
    "ConfidenceModel",
    "MetricMeans",
    "ViewReport",
    "evaluate",
    "evaluate_by",
]

ClusterColumn = Literal["auto", "prompt", "request"]

# Tags that are known before verification. Nothing else may split rows: given ℓ, n or a later
# logit the labels of even a perfect model are off.
SEGMENT_TAGS = (
    "domain",
    "adapter",
    "acceptance_rule",
    "draft_mode",
    "sampling_temperature",
    "context_length",
    "engine",
    "rank",
    "tenant",
    "revision",
)


def evaluate(
    records: AcceptanceRecords,
    calibration: ConfidenceModel,
    *,
    n_bins: int = DEFAULT_BINS,
    label_kind: LabelKind | str = LabelKind.HARD,
    cluster_column: ClusterColumn | None = "auto",
) -> CalibrationReport:
    """Measure a calibration on telemetry, per position and in both views.

    Args:
        records: telemetry of the same γ; rows unfit for statistics are dropped and counted.
        calibration: anything with ``conditional`` and ``survival``.
        n_bins: number of bins.
        label_kind: ``"hard"``, or ``"soft_full"`` to score the conditional view on c* where it
            is known, on the same positions k <= min(n + 1, ℓ).
        cluster_column: column whose equal values are one cluster. ``"auto"`` takes ``prompt``,
            else ``request``, else none; None takes every row as independent.

    Raises:
        ConfigurationError: for an unknown kind of label, labels that are bounds
            (``soft_truncated``) or a missing column.
        InvalidInputError: for soft labels that the records lack, or log-odds that contradict
            the probabilities.
    """
    kind = one_of("label_kind", label_kind, LabelKind)
    rows = records.fitting_rows()
    column, codes = _clusters(rows, cluster_column)
    logits = rows.confidence_logits
    conditional, survival = calibration.conditional(logits), calibration.survival(logits)
    conditional_odds = conditional_log_odds(calibration, logits, conditional)
    survival_odds = survival_log_odds(calibration, logits, conditional_odds, survival)
    labels, mask = _conditional_target(rows, kind)
    informed = survival_informed_mask(rows)
    coverage = _shares(informed)
    view = partial(_view, coverage=coverage, codes=codes, n_bins=n_bins)
    return CalibrationReport(
        gamma=rows.gamma,
        n_rows=len(rows),
        excluded=records.exclusion_counts(),
        n_bins=n_bins,
        label_kind=kind,
        cluster_column=column,
        n_clusters=len(rows) if codes is None else len(np.unique(codes)),
        observed=_shares(observed_mask(rows)),
        conditional=view(conditional, labels, mask, conditional_odds),
        survival=view(survival, survival_labels(rows), informed, survival_odds),
    )


def evaluate_by(
    records: AcceptanceRecords,
    calibration: ConfidenceModel,
    tag: str,
    *,
    n_bins: int = DEFAULT_BINS,
    label_kind: LabelKind | str = LabelKind.HARD,
    cluster_column: ClusterColumn | None = "auto",
) -> dict[Any, CalibrationReport]:
    """One report per value of a segment tag, in the order of the values, unknown (None) last.

    Args:
        records: telemetry.
        calibration: anything with ``conditional`` and ``survival``.
        tag: one of ``SEGMENT_TAGS``: known before verification, so that splitting by it keeps
            labels unbiased. Numbers are taken as they are; bucket them beforehand.
        n_bins: number of bins.
        label_kind: as in :func:`evaluate`.
        cluster_column: as in :func:`evaluate`.

    Raises:
        ConfigurationError: for a tag that depends on outcomes, or that the records lack.
    """
    if tag not in SEGMENT_TAGS:
        raise ConfigurationError("tag", tag, f"give one of {', '.join(SEGMENT_TAGS)}")
    column = getattr(records, tag)
    if column is None:
        raise ConfigurationError("tag", tag, "these records have no such column")
    values = [_known(value) for value in column.tolist()]
    index: dict[Any, list[int]] = {}
    for row, value in enumerate(values):
        index.setdefault(value, []).append(row)
    ordered = sorted(index, key=lambda value: (value is None, value if value is not None else 0))
    return {
        value: evaluate(
            records.select(np.array(index[value], dtype=np.intp)),
            calibration,
            n_bins=n_bins,
            label_kind=label_kind,
            cluster_column=cluster_column,
        )
        for value in ordered
    }


def _known(value: Any) -> Any:
    """A tag value, with the numeric spellings of "unknown" (NaN, -1) as None."""
    unknown = value is None or (isinstance(value, float | int) and not value >= 0)
    return None if unknown else value


def _clusters(
    rows: AcceptanceRecords, wanted: ClusterColumn | None
) -> tuple[str | None, NDArray[np.intp] | None]:
    """Name of the cluster column and a number per row."""
    if wanted is None:
        return None, None
    if wanted not in get_args(ClusterColumn):
        words = ", ".join(get_args(ClusterColumn))
        raise ConfigurationError("cluster_column", wanted, f"give one of {words}, or None")
    names = ("prompt", "request") if wanted == "auto" else (wanted,)
    for name in names:
        column = getattr(rows, name)
        if column is not None:
            return name, cluster_codes(column)
    if wanted == "auto":
        return None, None
    raise ConfigurationError("cluster_column", wanted, "these records have no such column")


def _conditional_target(
    rows: AcceptanceRecords, kind: LabelKind
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Labels [N, g] of the conditional view and where they count."""
    observed = observed_mask(rows)
    if kind is LabelKind.HARD:
        return conditional_labels(rows), observed
    if kind is LabelKind.SOFT_TRUNCATED:
        raise ConfigurationError("label_kind", str(kind), "bounds are no labels; use soft_full")
    if rows.soft_labels is None:
        raise InvalidInputError("label_kind", str(kind), "these records have no soft labels")
    return rows.soft_labels, observed & ~np.isnan(rows.soft_labels)


def _view(
    p: NDArray[np.float32],
    labels: NDArray[np.float32],
    mask: NDArray[np.bool_],
    odds: NDArray[np.float64],
    *,
    coverage: Sequence[float | None],
    codes: NDArray[np.intp] | None,
    n_bins: int,
) -> ViewReport:
    return ViewReport.of(
        [
            calibration_metrics(
                p[:, k],
                labels[:, k],
                mask=mask[:, k],
                logits=odds[:, k],
                n_bins=n_bins,
                clusters=codes,
                coverage=coverage[k],
            )
            for k in range(p.shape[1])
        ]
    )


def _shares(mask: NDArray[np.bool_]) -> tuple[float | None, ...]:
    """Share of True per position; None without rows."""
    if len(mask) == 0:
        return (None,) * int(mask.shape[1])
    shares: list[float] = mask.mean(axis=0).tolist()
    return tuple(shares)
