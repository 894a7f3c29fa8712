"""Report metrics of one position: every value a float, or null with its reason.

Labels are y, predictions p = σ(log-odds), residuals y - p. Binned metrics come from the additive
sums of :mod:`calib.reliability`, everything that states uncertainty from cluster sums.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from calib.bin_sums import BinSums, Floats
from calib.clusters import BinMoments, cluster_codes, effective_rows
from calib.debiased_calibration_error import DebiasedError, debiased_calibration_error
from calib.discrimination import area_under_curve, score_groups
from calib.errors import InvalidInputError
from calib.expected_calibration_error import (
    expected_calibration_error,
    null_level,
    worst_bin_gap,
)
from calib.log_loss_split import split_log_loss
from calib.position_metrics import PositionMetrics
from calib.proper_scores import brier_score, probability_logits
from calib.reliability import (
    DEFAULT_BINS,
    FINE_CELLS,
    Binning,
    ReliabilitySums,
    bin_index,
    check_bins,
    equal_mass_groups,
    unit_interval,
)
from calib.reliability_bins import reliability_bins
from calib.sharpness import sharpness_histogram
from calib.statuses import NullReason

__all__ = ["PositionMetrics", "calibration_metrics"]

# How far σ(logits) may be from p before the two cannot be of one model; fp32 products of
# hundreds of factors stay far below.
_LOGIT_TOLERANCE = 1e-4


def calibration_metrics(
    p: ArrayLike,  # [N] predicted probabilities in [0, 1]
    y: ArrayLike,  # [N] labels in [0, 1], hard or soft
    *,
    mask: ArrayLike | None = None,  # [N] bool
    logits: ArrayLike | None = None,  # [N] log-odds of p
    weights: ArrayLike | None = None,  # [N] >= 0
    n_bins: int = DEFAULT_BINS,
    clusters: ArrayLike | None = None,  # [N] integers, strings or None
    coverage: float | None = None,
) -> PositionMetrics:
    """All metrics of one position.

    Args:
        p: predictions; cast to fp32.
        y: labels; cast to fp32. Anything, also NaN, where ``mask`` is False.
        mask: rows whose label counts; all when None.
        logits: log-odds of ``p`` (after its temperature), for AUC and log loss. Without them they
            are taken from ``p``, which has lost what lies beyond fp32 (a lower bound of the loss).
        weights: known weights, for example forgetting; rows of weight 0 are left out.
        n_bins: number of bins.
        clusters: rows that share luck (a request, a prompt); widens intervals and null level.
        coverage: share of rows that reach the position; the share of ``mask`` when None.

    Raises:
        InvalidInputError: for lengths that differ, values outside [0, 1], weights that are
            negative or not finite, or logits that do not belong to ``p``.

    Examples:
        >>> report = calibration_metrics([0.2, 0.5, 0.9], [0, 1, 1])
        >>> round(report.ece, 6), sum(b is None for b in report.bins)
        (0.266667, 12)
    """
    rows, share = _select(p, y, mask, logits, weights, clusters)
    reached = share if coverage is None else coverage
    if rows.n == 0:
        return _with_reasons(_empty(check_bins(n_bins), reached), NullReason.NO_ROWS)
    return _with_reasons(_measure(rows, n_bins, reached), NullReason.TOO_FEW_ROWS)


def _empty(n_bins: int, coverage: float | None) -> PositionMetrics:
    return PositionMetrics(
        n=0,
        effective_n=0.0,
        coverage=coverage,
        sharpness=(0,) * n_bins,
        bins=(None,) * n_bins,
    )


def _measure(rows: _Rows, n_bins: int, coverage: float | None) -> PositionMetrics:
    sums, moments = _equal_width(rows, n_bins)
    mass_sums, mass_moments = _equal_mass(rows, n_bins)
    error = debiased_calibration_error(moments)
    mass_error = debiased_calibration_error(mass_moments)
    groups = score_groups(rows.logits, rows.y, rows.weights)
    split = split_log_loss(
        rows.logits, rows.y, weights=rows.weights, design_effect=moments.design_effect
    )
    return PositionMetrics(
        n=rows.n,
        effective_n=effective_rows(rows.y - rows.p, rows.weights, rows.codes),
        coverage=coverage,
        mean_prediction=float(sums.sum_p.sum()) / sums.total_weight,
        mean_label=float(sums.sum_y.sum()) / sums.total_weight,
        ece=expected_calibration_error(sums),
        ece_equal_mass=expected_calibration_error(mass_sums),
        debiased_ece=_part(error, "root"),
        debiased_ece_squared=_part(error, "squared"),
        debiased_ece_low=_part(error, "low"),
        debiased_ece_high=_part(error, "high"),
        debiased_ece_equal_mass=_part(mass_error, "root"),
        debiased_ece_equal_mass_low=_part(mass_error, "low"),
        debiased_ece_equal_mass_high=_part(mass_error, "high"),
        worst_bin_gap=worst_bin_gap(sums),
        brier=brier_score(sums),
        log_loss=split.total,
        log_loss_calibration=split.calibration,
        log_loss_refinement=split.refinement,
        auc=area_under_curve(groups),
        null_level=null_level(sums, moments.design_effect),
        sharpness=sharpness_histogram(sums),
        bins=reliability_bins(sums, moments.design_effect),
    )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that count, as fp64 copies of fp32 values."""

    p32: NDArray[np.float32]
    p: Floats
    y: Floats
    logits: Floats
    weights: Floats | None
    codes: NDArray[np.intp] | None

    @property
    def n(self) -> int:
        return len(self.p)


def _select(
    p: ArrayLike,
    y: ArrayLike,
    mask: ArrayLike | None,
    logits: ArrayLike | None,
    weights: ArrayLike | None,
    clusters: ArrayLike | None,
) -> tuple[_Rows, float | None]:
    """Rows that count, and their share of all rows."""
    predicted = np.asarray(p)
    if predicted.ndim != 1:
        raise InvalidInputError("p", predicted.shape, "give one position at a time, [rows]")
    keep = _column("mask", mask, len(predicted), np.bool_)
    row_weight = _column("weights", weights, len(predicted), np.float64)
    keep = np.ones(len(predicted), dtype=np.bool_) if keep is None else keep
    share = float(keep.mean()) if len(keep) else None
    if row_weight is not None:
        if not (np.isfinite(row_weight[keep]).all() and (row_weight[keep] >= 0.0).all()):
            raise InvalidInputError("weights", row_weight.tolist(), "give finite weights >= 0")
        keep = keep & (row_weight > 0.0)
    p32 = unit_interval("p", predicted[keep])
    label = _column("y", y, len(predicted), None)
    given = _column("logits", logits, len(predicted), np.float64)
    groups = _column("clusters", clusters, len(predicted), None)
    odds = probability_logits(p32) if given is None else _matching_logits(given[keep], p32)
    rows = _Rows(
        p32=p32,
        p=p32.astype(np.float64),
        y=unit_interval("y", label[keep]).astype(np.float64),
        logits=odds,
        weights=None if row_weight is None else row_weight[keep],
        codes=None if groups is None else cluster_codes(groups[keep]),
    )
    return rows, share


def _column(field: str, values: ArrayLike | None, rows: int, dtype: Any) -> Any:
    if values is None:
        return None
    column = np.asarray(values, dtype=dtype)
    if column.shape != (rows,):
        raise InvalidInputError(field, column.shape, f"give one value per row, ({rows},)")
    return column


def _matching_logits(logits: Floats, p32: NDArray[np.float32]) -> Floats:
    if not np.isfinite(logits).all():
        raise InvalidInputError("logits", "not finite", "give finite log-odds")
    distance = np.abs(expit(logits) - p32)
    if len(distance) and distance.max() > _LOGIT_TOLERANCE:
        row = int(distance.argmax())
        raise InvalidInputError(
            "logits",
            float(logits[row]),
            f"the prediction of that row is {p32[row]}; give its log-odds, after the temperature",
        )
    return logits


def _equal_width(rows: _Rows, n_bins: int) -> tuple[BinSums, BinMoments]:
    bins = bin_index(rows.p32, n_bins)
    if rows.weights is None:
        sums = ReliabilitySums.from_predictions(rows.p32, rows.y, n_bins=n_bins).position(0)
    else:
        sums = BinSums.weighted(bins, rows.p, rows.y, rows.weights, n_bins)
    return sums, _moments(rows, sums, bins)


def _equal_mass(rows: _Rows, n_bins: int) -> tuple[BinSums, BinMoments]:
    cells = bin_index(rows.p32, FINE_CELLS)
    mass = np.bincount(cells, weights=rows.weights, minlength=FINE_CELLS)
    bins = equal_mass_groups(mass, n_bins)[cells]
    if rows.weights is None:
        total = ReliabilitySums.from_predictions(
            rows.p32, rows.y, n_bins=n_bins, binning=Binning.EQUAL_MASS
        )
        sums = total.position(0)
    else:
        sums = BinSums.weighted(bins, rows.p, rows.y, rows.weights, n_bins)
    return sums, _moments(rows, sums, bins)


def _moments(rows: _Rows, sums: BinSums, bins: NDArray[np.intp]) -> BinMoments:
    if rows.codes is None:
        return BinMoments.of_independent_rows(sums)
    return BinMoments.of_clusters(sums, bins, rows.y - rows.p, rows.weights, rows.codes)


def _part(error: DebiasedError | None, name: str) -> float | None:
    return None if error is None else float(getattr(error, name))


def _with_reasons(metrics: PositionMetrics, reason: NullReason) -> PositionMetrics:
    """Give every null field its reason; a missing AUC on rows means a missing class."""
    reasons = {f.name: str(reason) for f in fields(metrics) if getattr(metrics, f.name) is None}
    if "auc" in reasons and metrics.n:
        reasons["auc"] = str(NullReason.ONE_CLASS)
    return replace(metrics, reasons=reasons)
