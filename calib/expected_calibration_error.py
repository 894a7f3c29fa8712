"""Plug-in expected calibration error (ECE), its worst bin and its null level.

ECE = Σ_b (W_b / W) · |mean label - mean prediction in b|. The plug-in number is never 0 on a
finite sample: a perfectly calibrated model shows the *null level*, and a reported ECE means
something only beside it.
"""

from __future__ import annotations

import math

import numpy as np

from calib.bin_sums import BinSums
from calib.clusters import expected_variance


def expected_calibration_error(sums: BinSums) -> float | None:
    """Plug-in ECE in [0, 1]: weighted mean of the absolute bin gaps; None without rows.

    Biased upwards by about the null level when the model is well calibrated.

    Args:
        sums: bins of one position, equal-width or equal-mass.
    """
    total = sums.total_weight
    return float(np.abs(sums.sum_y - sums.sum_p).sum()) / total if total > 0 else None


def worst_bin_gap(sums: BinSums) -> float | None:
    """Largest absolute bin gap in [0, 1], however few rows the bin has; None without rows.

    Shown beside the ECE because a mean over rows hides a small bin that is completely wrong.
    """
    return float(np.abs(sums.gap).max()) if sums.total_weight > 0 else None


def null_level(sums: BinSums, design_effect: float = 1.0) -> float | None:
    """Plug-in ECE that a perfectly calibrated model shows on these rows, in expectation.

    Under calibration the residuals of bin b sum to about Normal(0, V_b), whose mean absolute
    value is √(2V_b/π), so the level is √(2/π) · Σ_b √V_b / W. For hard labels V_b = Σp(1 - p),
    without any estimate. Soft labels spread less than a coin and p does not say by how much:
    there V_b is the empirical variance of y - p within the bin, centred so that miscalibration
    does not count as noise.

    Args:
        sums: bins of one position.
        design_effect: variance inflation by clusters (:class:`calib.clusters.BinMoments`), >= 1.

    Returns:
        The level, or None without rows.
    """
    total = sums.total_weight
    if total <= 0:
        return None
    deviation = np.sqrt(expected_variance(sums) * design_effect)
    return math.sqrt(2.0 / math.pi) * float(deviation.sum()) / total
