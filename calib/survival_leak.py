"""How much the next logit knows about a position's outcome: the leak that breaks the product.

The scheduler spends on survival, and a product of perfect conditionals is no perfect survival:
c_i was made before token x_i was sampled, z_{i+1} after it. Where z_{i+1} reveals x_i, it also
reveals whether position i will be accepted, so E[y_i·c_{i+1}] differs from E[c_i·c_{i+1}] by a
covariance that no calibration of single positions can remove.

Measured per position i = 1 … γ - 1 on the rows where y_i was observed (ℓ >= i and n >= i - 1).
Nothing else restricts them: z_{i+1} exists for every drafted block, whatever was verified, and
asking for ℓ >= i + 1 would select on the outcome wherever stop tokens cut blocks.

* ``correlation``: corr(y_i - c_i, z_{i+1}).
* ``partial``: the same after z_i is regressed out of both, so that what is left of a
  miscalibrated c_i does not pass for a leak (it lies in z_i, and z_i and z_{i+1} are alike).
* ``product_gap``: covariance of y_i - c_i and c_{i+1}, again without what z_i explains: the
  probability by which the product understates survival over positions i and i + 1, given that
  i - 1 positions were accepted.

Intervals treat all rows of a prompt or request as one piece of luck.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from calib.clusters import cluster_codes
from calib.errors import RecordError
from calib.evaluation import ClusterColumn, ConfidenceModel
from calib.labels import conditional_labels, observed_mask
from calib.records import AcceptanceRecords
from calib.statuses import NullReason

__all__ = ["LeakEstimate", "SurvivalLeak", "measure_leak"]

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
# Two regressions and a correlation on fewer rows are arithmetic, not evidence.
MINIMUM_ROWS = 30
_FLAT = 1e-12  # variance shares below this are rounding, not variance


@dataclass(frozen=True, slots=True)
class LeakEstimate:
    """Leak at one position, or pooled; None where ``reason`` says why.

    Attributes:
        position: i, from 1; None for the pooled estimate.
        rows: rows with an observed y_i; summed over positions when pooled.
        clusters: prompts or requests among them.
        correlation: corr(y_i - c_i, z_{i+1}), in [-1, 1].
        correlation_low: lower end of its 95 % interval.
        correlation_high: upper end of its 95 % interval.
        partial: the same given z_i.
        partial_low: lower end of its 95 % interval.
        partial_high: upper end of its 95 % interval.
        product_gap: covariance of y_i - c_i and c_{i+1} given z_i, a difference of probabilities.
        product_gap_low: lower end of its 95 % interval.
        product_gap_high: upper end of its 95 % interval.
        reason: why a number is null: ``no_rows``, ``too_few_rows``, or ``one_class`` where labels
            or logits do not vary.
    """

    position: int | None
    rows: int
    clusters: int
    correlation: float | None = None
    correlation_low: float | None = None
    correlation_high: float | None = None
    partial: float | None = None
    partial_low: float | None = None
    partial_high: float | None = None
    product_gap: float | None = None
    product_gap_low: float | None = None
    product_gap_high: float | None = None
    reason: str | None = None

    @property
    def is_present(self) -> bool | None:
        """Whether the interval of ``partial`` leaves out 0; None without an interval."""
        if self.partial_low is None or self.partial_high is None:
            return None
        return not self.partial_low <= 0.0 <= self.partial_high

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values by field name, and ``is_present``."""
        return {**asdict(self), "is_present": self.is_present}


@dataclass(frozen=True, slots=True)
class SurvivalLeak:
    """Leak of every position with a next one, and over all of them.

    Attributes:
        positions: estimates for i = 1 … γ - 1; empty for γ = 1.
        pooled: correlations within positions, averaged over positions by their variances: every
            quantity is centred (and z_i regressed out) position by position, then pooled.
        cluster_column: column that names the clusters, or None for independent rows.
    """

    positions: tuple[LeakEstimate, ...]
    pooled: LeakEstimate
    cluster_column: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "positions": [estimate.to_dict() for estimate in self.positions],
            "pooled": self.pooled.to_dict(),
            "cluster_column": self.cluster_column,
        }


def measure_leak(
    records: AcceptanceRecords,
    calibration: ConfidenceModel,
    *,
    cluster_column: ClusterColumn | None = "auto",
) -> SurvivalLeak:
    """Estimate the leak on the usable rows.

    Args:
        records: telemetry; judge a fit on rows it has not seen.
        calibration: gives c_i and c_{i+1} from the raw logits. Take one that was fitted on
            conditional labels: what fits survival bends conditionals to hide part of the leak.
        cluster_column: column whose equal values are one cluster; ``"auto"`` takes ``prompt``,
            else ``request``, else none; None takes every row as independent.

    Raises:
        RecordError: a named column is missing.
    """
    rows = records.fitting_rows()
    column, codes = _clusters(rows, cluster_column)
    samples = list(_samples(rows, calibration, codes))
    return SurvivalLeak(
        positions=tuple(_estimate([sample], index + 1) for index, sample in enumerate(samples)),
        pooled=_estimate(samples, None),
        cluster_column=column,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """Rows of one position; all [M]."""

    label: Floats  # y_i
    residual: Floats  # y_i - c_i
    logit: Floats  # z_i
    following: Floats  # z_{i+1}
    confidence: Floats  # c_{i+1}
    codes: NDArray[np.intp]


def _samples(
    rows: AcceptanceRecords, calibration: ConfidenceModel, codes: NDArray[np.intp]
) -> Iterator[_Sample]:
    confidence = calibration.conditional(rows.confidence_logits).astype(np.float64)
    logits = rows.confidence_logits.astype(np.float64)
    labels, observed = conditional_labels(rows), observed_mask(rows)
    for index in range(rows.gamma - 1):
        keep = observed[:, index]
        label = labels[keep, index].astype(np.float64)
        yield _Sample(
            label=label,
            residual=label - confidence[keep, index],
            logit=logits[keep, index],
            following=logits[keep, index + 1],
            confidence=confidence[keep, index + 1],
            codes=codes[keep],
        )


def _estimate(samples: Sequence[_Sample], position: int | None) -> LeakEstimate:
    """One estimate over the given positions."""
    codes = np.concatenate([np.zeros(0, np.intp), *(sample.codes for sample in samples)])
    counts: dict[str, Any] = {
        "position": position,
        "rows": len(codes),
        "clusters": len(np.unique(codes)),
    }
    if len(codes) < MINIMUM_ROWS:
        reason = NullReason.TOO_FEW_ROWS if len(codes) else NullReason.NO_ROWS
        return LeakEstimate(**counts, reason=str(reason))
    gaps = [_centred(sample, sample.confidence, controlled=True) for sample in samples]
    gap = np.concatenate([x * y for x, y in gaps])
    values: dict[str, Any] = _interval_fields(
        "product_gap", float(gap.mean()), gap - gap.mean(), codes
    )
    varied = True
    for name, controlled in (("correlation", False), ("partial", True)):
        pairs = [_centred(sample, sample.following, controlled=controlled) for sample in samples]
        x = np.concatenate([pair[0] for pair in pairs])
        y = np.concatenate([pair[1] for pair in pairs])
        varied &= _vary(samples, x, y)
        if varied:
            values |= _correlation_fields(name, x, y, codes)
    return LeakEstimate(**counts, **values, reason=None if varied else str(NullReason.ONE_CLASS))


def _centred(sample: _Sample, other: Floats, *, controlled: bool) -> tuple[Floats, Floats]:
    """Residual and another quantity without their means, and without what z_i explains of them."""
    if not len(sample.logit):
        return sample.residual, other
    x, y = sample.residual - sample.residual.mean(), other - other.mean()
    control = sample.logit - sample.logit.mean()
    square = float(control @ control)
    # A constant logit explains nothing.
    if not controlled or square <= _FLAT * float(sample.logit @ sample.logit):
        return x, y
    return x - control * (control @ x / square), y - control * (control @ y / square)


def _vary(samples: Sequence[_Sample], x: Floats, y: Floats) -> bool:
    """Whether residual and next logit still vary, beyond rounding."""
    residual = sum(float(sample.residual @ sample.residual) for sample in samples)
    following = sum(float(sample.following @ sample.following) for sample in samples)
    labels = {value for sample in samples for value in np.unique(sample.label).tolist()}
    return bool(len(labels) > 1 and x @ x > _FLAT * residual and y @ y > _FLAT * following)


def _correlation_fields(
    name: str, x: Floats, y: Floats, codes: NDArray[np.intp]
) -> dict[str, float | None]:
    """Correlation of centred x and y with its interval on Fisher's scale.

    The influence of a row on r is x̃ỹ - r(x̃² + ỹ²)/2 with x̃, ỹ of unit variance. Estimating means
    and regressions does not enter it: residuals are uncorrelated with what was regressed out.
    """
    scaled_x, scaled_y = x / np.sqrt(np.mean(x * x)), y / np.sqrt(np.mean(y * y))
    r = float(np.clip(np.mean(scaled_x * scaled_y), -1.0, 1.0))
    influence = scaled_x * scaled_y - 0.5 * r * (scaled_x**2 + scaled_y**2)
    half = _half_width(influence, codes)
    fields: dict[str, float | None] = {name: r, f"{name}_low": None, f"{name}_high": None}
    if half is not None:
        # At r = ±1 Fisher's scale ends; there every influence is 0, and so is the width.
        stretch = max(1.0 - r * r, np.finfo(np.float64).tiny)
        centre = np.arctanh(np.clip(r, -1.0 + 1e-15, 1.0 - 1e-15))
        fields[f"{name}_low"] = min(float(np.tanh(centre - half / stretch)), r)
        fields[f"{name}_high"] = max(float(np.tanh(centre + half / stretch)), r)
    return fields


def _interval_fields(
    name: str, value: float, influence: Floats, codes: NDArray[np.intp]
) -> dict[str, float | None]:
    half = _half_width(influence, codes)
    low, high = (None, None) if half is None else (value - half, value + half)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _half_width(influence: Floats, codes: NDArray[np.intp]) -> float | None:
    """Half the 95 % interval of a mean of ``influence``, robust to clusters; None with one.

    Student's t with clusters - 1 degrees of freedom: few prompts are few observations.
    """
    _, cluster = np.unique(codes, return_inverse=True)
    sums = np.bincount(cluster, weights=influence)
    groups = len(sums)
    if groups < 2:
        return None
    variance = float(np.square(sums).sum()) * groups / (groups - 1) / len(influence) ** 2
    quantile = float(stats.t.ppf(0.5 + 0.5 * CONFIDENCE, groups - 1))
    return quantile * float(np.sqrt(variance))


def _clusters(
    rows: AcceptanceRecords, wanted: ClusterColumn | None
) -> tuple[str | None, NDArray[np.intp]]:
    """Name of the cluster column and a number per row; every row its own cluster without one."""
    if wanted is not None:
        for name in ("prompt", "request") if wanted == "auto" else (wanted,):
            column = getattr(rows, name)
            if column is not None:
                return name, cluster_codes(column)
        if wanted != "auto":
            raise RecordError(wanted, None, "send this column, or take cluster_column='auto'")
    return None, np.arange(len(rows))
