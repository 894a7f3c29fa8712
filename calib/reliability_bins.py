"""The reliability diagram of one position: what each bin predicted and what happened."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from calib.bin_sums import BinSums

_Z95 = 1.959963984540054  # 97.5 % quantile of the standard normal


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """One bin with rows in it.

    Attributes:
        mean_prediction: mean p, in [0, 1].
        mean_label: mean y, in [0, 1].
        count: rows, >= 1.
        mean_label_low: lower end of the 95 % interval of the mean label.
        mean_label_high: upper end of the 95 % interval of the mean label.
    """

    mean_prediction: float
    mean_label: float
    count: int
    mean_label_low: float
    mean_label_high: float

    def to_dict(self) -> dict[str, float | int]:
        """Plain values by field name."""
        return asdict(self)


def reliability_bins(
    sums: BinSums, design_effect: float = 1.0
) -> tuple[ReliabilityBin | None, ...]:
    """All bins in order, None where a bin is empty.

    Intervals are Wilson's at the effective number of rows of the bin: Kish's number for weights,
    divided by the design effect of clusters, times coin variance over label variance for soft
    labels (which spread less than coins).

    Args:
        sums: bins of one position.
        design_effect: variance inflation by clusters, >= 1.
    """
    return tuple(_bin(sums, index, design_effect) for index in range(len(sums.count)))


def _bin(sums: BinSums, index: int, design_effect: float) -> ReliabilityBin | None:
    count, weight = int(sums.count[index]), float(sums.weight[index])
    if count == 0 or weight <= 0.0:
        return None
    label = min(float(sums.sum_y[index]) / weight, 1.0)
    effective = weight**2 / float(sums.squared_weight[index]) / design_effect
    coin = label * (1.0 - label)
    if sums.soft and coin > 0.0:
        variance = max(coin - float(sums.sum_label_variance[index]) / weight, 0.0)
        # One pseudo-row of coin variance keeps bins of few or equal labels from claiming certainty.
        effective *= coin / (variance + coin / count)
    low, high = wilson_interval(label, effective)
    return ReliabilityBin(min(float(sums.sum_p[index]) / weight, 1.0), label, count, low, high)


def wilson_interval(share: float, rows: float) -> tuple[float, float]:
    """95 % score interval of a share, inside [0, 1] and never empty at 0 or 1.

    Args:
        share: observed share, in [0, 1].
        rows: effective rows behind it, > 0.

    Examples:
        >>> [round(end, 4) for end in wilson_interval(0.9, 100.0)]
        [0.8256, 0.9448]
    """
    squared = _Z95 * _Z95 / rows
    centre = (share + 0.5 * squared) / (1.0 + squared)
    half = _Z95 * math.sqrt((share * (1.0 - share) + 0.25 * squared) / rows) / (1.0 + squared)
    # The exact ends at 0 and 1 are 0 and 1; rounding must not exclude the share itself.
    return min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share)
