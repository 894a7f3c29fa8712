"""Clusters of rows that share luck: design effects and cluster-robust bin moments.

Rows of one request or prompt are not independent evidence. Everything that states uncertainty
here therefore works on per-cluster sums: clusters are independent, rows inside one need not be.
Without clusters every row is its own cluster, and the formulas below reduce to the usual ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from calib.bin_sums import BinSums, Floats
from calib.errors import InvalidInputError


def cluster_codes(clusters: ArrayLike) -> NDArray[np.intp]:
    """Number the clusters 0, 1, …; a row of unknown cluster (None) stands alone.

    Args:
        clusters: [N] integers, strings or None.

    Raises:
        InvalidInputError: unless one-dimensional.
    """
    values = np.asarray(clusters)
    if values.ndim != 1:
        raise InvalidInputError("clusters", values.shape, "give one cluster per row, [N]")
    if values.dtype.kind in "iu":
        return np.unique(values, return_inverse=True)[1].astype(np.intp)
    known: dict[object, int] = {}
    # A fresh object() never equals another key, so each unknown row gets a number of its own.
    keys = (object() if value is None else value for value in values.tolist())
    return np.fromiter((known.setdefault(key, len(known)) for key in keys), np.intp, len(values))


def clustered_mean(
    values: Floats,  # [N]
    counts: NDArray[Any],  # [N] >= 0, what each row counts in the mean
    clusters: NDArray[np.intp],  # [N] 0, 1, …; numbers may be left out
) -> tuple[float, float]:
    """Σ values / Σ counts, and its standard error with clusters as independent draws.

    The error is infinite for fewer than two clusters; (0, 0) where nothing counts.
    """
    total = float(counts.sum())
    if total == 0.0:
        return 0.0, 0.0
    mean = float(values.sum()) / total
    groups = int(np.count_nonzero(np.bincount(clusters)))
    if groups < 2:
        return mean, math.inf
    sums = np.bincount(clusters, values) - mean * np.bincount(clusters, counts)
    return mean, math.sqrt(float(sums @ sums) * groups / (groups - 1)) / total


@dataclass(frozen=True, slots=True, eq=False)
class BinMoments:
    """Moments of per-cluster bin sums, W_cb = Σw and R_cb = Σwr over the rows of cluster c in b.

    Attributes:
        clusters: [B] clusters that reach the bin.
        total_clusters: clusters in all.
        weight: [B] Σ_c W_cb.
        residual: [B] Σ_c R_cb.
        squared_weight: [B] Σ_c W_cb².
        squared_residual: [B] Σ_c R_cb².
        centred_square: [B, B] Σ_c e_cb e_cb' with e_cb = R_cb - W_cb · (residual / weight)_b.
        row_variance: [B] variance of Σwr for independent rows, for shrinking small bins.
        design_effect: how much clustering inflates the variance of bin sums, >= 1.
    """

    clusters: NDArray[np.int64]
    total_clusters: int
    weight: Floats
    residual: Floats
    squared_weight: Floats
    squared_residual: Floats
    centred_square: Floats
    row_variance: Floats
    design_effect: float

    @classmethod
    def of_independent_rows(cls, sums: BinSums) -> BinMoments:
        """Moments when every row is its own cluster: all from the additive sums."""
        gap = sums.gap
        centred = (
            sums.squared_weight_squared_residual
            - 2.0 * gap * sums.squared_weight_residual
            + gap * gap * sums.squared_weight
        )
        return cls(
            clusters=sums.count,
            total_clusters=sums.rows,
            weight=sums.weight,
            residual=sums.sum_y - sums.sum_p,
            squared_weight=sums.squared_weight,
            squared_residual=sums.squared_weight_squared_residual,
            centred_square=np.diag(np.maximum(centred, 0.0)),
            row_variance=expected_variance(sums),
            design_effect=1.0,
        )

    @classmethod
    def of_clusters(
        cls,
        sums: BinSums,
        bins: NDArray[np.intp],
        residual: Floats,
        weights: Floats | None,
        codes: NDArray[np.intp],
    ) -> BinMoments:
        """Moments of rows that belong to clusters.

        Args:
            sums: sums of the same rows.
            bins: [N] bin of each row.
            residual: [N] y - p.
            weights: [N] or None for ones.
            codes: [N] cluster numbers from :func:`cluster_codes`.
        """
        shape = (int(codes.max()) + 1, len(sums.weight))
        row_weight = np.ones_like(residual) if weights is None else weights
        weight = sparse.csr_array((row_weight, (codes, bins)), shape=shape)
        total = sparse.csr_array((row_weight * residual, (codes, bins)), shape=shape)
        columns, gap = weight.indices, sums.gap
        error = weight.copy()
        error.data = total.data - weight.data * gap[columns]

        def per_bin(values: Floats) -> Floats:
            return np.bincount(columns, weights=values, minlength=shape[1]).astype(np.float64)

        centred = (error.T @ error).toarray()
        independent = float(sums.residual_variance().sum())
        clusters = np.bincount(columns, minlength=shape[1])
        return cls(
            clusters=clusters,
            total_clusters=int(np.count_nonzero(np.diff(weight.indptr))),
            weight=sums.weight,
            residual=sums.sum_y - sums.sum_p,
            squared_weight=per_bin(weight.data**2),
            squared_residual=per_bin(total.data**2),
            centred_square=centred,
            row_variance=expected_variance(sums),
            design_effect=_ratio(_corrected(np.diag(centred), clusters), independent),
        )

    def mean_covariance(self) -> Floats:
        """[B, B] estimated covariance of the mean residual of each bin; 0 for empty bins.

        A cluster-robust ("sandwich") estimate is blind where few clusters met few failures: five
        accepted rows at p = .95 show no spread at all. One pseudo-cluster with the variance that
        a calibrated bin would have is added; it also stands in for the usual n / (n - 1).
        """
        clusters = np.maximum(self.clusters, 1)
        prior = self.row_variance * self.design_effect / clusters
        square = self.centred_square + np.diag(prior)
        safe = np.where(self.weight > 0, self.weight, 1.0)
        return np.asarray(square / np.outer(safe, safe), dtype=np.float64)


def expected_variance(sums: BinSums) -> Floats:
    """[B] variance of Σwr that a calibrated model would show, rows taken as independent.

    Hard labels are Bernoulli(p): Σw²p(1 - p) is exact and needs no data. A soft label c* varies
    less than a coin (c* is itself a probability), by an amount that p does not determine, so its
    variance is the empirical one of r within the bin.
    """
    return sums.residual_variance() if sums.soft else sums.squared_weight_variance


def effective_rows(
    residual: Floats, weights: Floats | None, codes: NDArray[np.intp] | None
) -> float:
    """Effective number of independent, equally weighted rows.

    Kish's (Σw)²/Σw², divided by the design effect of the mean residual: its cluster-robust
    variance over its variance with independent rows, never below 1. One single cluster counts
    as one row.

    Args:
        residual: [N] y - p.
        weights: [N] weights > 0, or None.
        codes: [N] cluster numbers, or None.

    Returns:
        A number in [0, N]; 0 without rows.
    """
    rows = len(residual)
    if rows == 0:
        return 0.0
    row_weight = np.ones(rows) if weights is None else weights
    kish = float(row_weight.sum() ** 2 / np.square(row_weight).sum())
    if codes is None:
        return kish
    mean = np.average(residual, weights=row_weight)
    error = row_weight * (residual - mean)
    members = np.bincount(codes)
    groups = np.count_nonzero(members)
    if groups == 1:
        return 1.0
    clustered = np.square(np.bincount(codes, weights=error)).sum() * groups / (groups - 1)
    independent = np.square(error).sum() * rows / max(rows - 1, 1)
    return kish / _ratio(float(clustered), float(independent))


def _corrected(square: Floats, clusters: NDArray[np.integer]) -> float:
    """Σ over bins of centred squares, each with its G / (G - 1)."""
    factor = clusters / np.maximum(clusters - 1, 1)
    return float((square * factor).sum())


def _ratio(clustered: float, independent: float) -> float:
    """Design effect; noise may push an estimate below 1, which would claim extra rows."""
    return max(1.0, clustered / independent) if independent > 0 else 1.0
