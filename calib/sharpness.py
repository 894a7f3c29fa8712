"""Sharpness: how far predictions dare to leave the base rate, whatever the labels say.

Of two calibrated models the sharper one is the better one, and a fit that pulls everything to the
base rate is calibrated and useless. Hence a histogram beside every calibration error.
"""

from __future__ import annotations

from calib.bin_sums import BinSums


def sharpness_histogram(sums: BinSums) -> tuple[int, ...]:
    """Rows per equal-width bin of the prediction, [B], empty bins as 0.

    Args:
        sums: equal-width bins of one position.
    """
    return tuple(int(count) for count in sums.count)
