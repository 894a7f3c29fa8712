"""Sums of one position per bin in fp64: what every binned metric is computed from.

Residuals are r = y - p throughout. Rows may carry known weights w (forgetting, audits); without
weights every w is 1 and the sums come from exact integers (:mod:`calib.reliability`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class BinSums:
    """Sums over the rows of each bin, all [B].

    Attributes:
        count: rows.
        weight: Σw.
        sum_p: Σwp.
        sum_y: Σwy.
        sum_squared_residual: Σwr².
        sum_label_variance: Σwy(1 - y); all zero when labels are hard.
        squared_weight: Σw².
        squared_weight_residual: Σw²r.
        squared_weight_squared_residual: Σw²r².
        squared_weight_variance: Σw²p(1 - p), the variance of Σwr for hard labels and right p.
    """

    count: NDArray[np.int64]
    weight: Floats
    sum_p: Floats
    sum_y: Floats
    sum_squared_residual: Floats
    sum_label_variance: Floats
    squared_weight: Floats
    squared_weight_residual: Floats
    squared_weight_squared_residual: Floats
    squared_weight_variance: Floats

    @classmethod
    def unweighted(
        cls,
        count: Floats,
        sum_p: Floats,
        sum_y: Floats,
        sum_squared_residual: Floats,
        sum_variance: Floats,
        sum_label_variance: Floats,
    ) -> BinSums:
        """Sums in which every row counts once."""
        return cls(
            count=count.astype(np.int64),
            weight=count,
            sum_p=sum_p,
            sum_y=sum_y,
            sum_squared_residual=sum_squared_residual,
            sum_label_variance=sum_label_variance,
            squared_weight=count,
            squared_weight_residual=sum_y - sum_p,
            squared_weight_squared_residual=sum_squared_residual,
            squared_weight_variance=sum_variance,
        )

    @classmethod
    def weighted(
        cls, bins: NDArray[np.intp], p: Floats, y: Floats, weights: Floats, n_bins: int
    ) -> BinSums:
        """Sum rows with weights.

        Args:
            bins: [N] bin of each row.
            p: [N] predictions.
            y: [N] labels.
            weights: [N] weights > 0.
            n_bins: number of bins.
        """

        def total(values: Floats) -> Floats:
            return np.bincount(bins, weights=values, minlength=n_bins).astype(np.float64)

        residual = y - p
        squared = weights * weights
        return cls(
            count=np.bincount(bins, minlength=n_bins).astype(np.int64),
            weight=total(weights),
            sum_p=total(weights * p),
            sum_y=total(weights * y),
            sum_squared_residual=total(weights * residual * residual),
            sum_label_variance=total(weights * y * (1.0 - y)),
            squared_weight=total(squared),
            squared_weight_residual=total(squared * residual),
            squared_weight_squared_residual=total(squared * residual * residual),
            squared_weight_variance=total(squared * p * (1.0 - p)),
        )

    @property
    def rows(self) -> int:
        """Rows in all bins."""
        return int(self.count.sum())

    @property
    def total_weight(self) -> float:
        """Σw over all bins."""
        return float(self.weight.sum())

    @property
    def soft(self) -> bool:
        """Whether any label lies strictly between 0 and 1."""
        return bool(self.sum_label_variance.any())

    @property
    def gap(self) -> Floats:
        """[B] mean label minus mean prediction; 0 in empty bins."""
        difference = self.sum_y - self.sum_p
        return np.divide(
            difference, self.weight, out=np.zeros_like(difference), where=self.weight > 0
        )

    def residual_variance(self) -> Floats:
        """[B] estimated variance of Σwr around its mean, rows taken as independent.

        Centred within the bin and corrected for the estimated mean; a bin of one row gives r²,
        the only evidence it has.
        """
        gap = self.gap
        spread = (
            self.squared_weight_squared_residual
            - 2.0 * gap * self.squared_weight_residual
            + gap * gap * self.squared_weight
        )
        count = self.count
        corrected = spread * count / np.maximum(count - 1, 1)
        single = count == 1
        return np.where(single, self.squared_weight_squared_residual, np.maximum(corrected, 0.0))
