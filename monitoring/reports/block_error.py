"""One calibration error for a whole block: all positions together, with an honest interval.

Averages over positions have no interval of their own, because positions of one block and blocks of
one prompt share luck. Here every (position, bin) pair is one cell and every prompt one cluster; the
debiased estimate and its interval (:mod:`calib.debiased_calibration_error`) hold for the block.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from calib.bin_sums import BinSums
from calib.clusters import BinMoments, cluster_codes
from calib.debiased_calibration_error import debiased_calibration_error
from calib.evaluation import ConfidenceModel
from calib.labels import (
    conditional_labels,
    observed_mask,
    survival_informed_mask,
    survival_labels,
)
from calib.records import AcceptanceRecords
from calib.reliability import DEFAULT_BINS, bin_index

__all__ = ["BlockError", "block_errors"]


@dataclass(frozen=True, slots=True)
class BlockError:
    """Debiased L2 calibration error over the (position, bin) cells of a block.

    Attributes:
        rows: labels behind it, summed over positions.
        value: √Σ_kb w_kb·gap_kb² without the part that chance explains, in [0, 1]; None when no
            cell holds two prompts.
        low: lower end of its 95 % interval.
        high: upper end of its 95 % interval.
    """

    rows: int
    value: float | None = None
    low: float | None = None
    high: float | None = None

    def to_dict(self) -> dict[str, float | int | None]:
        """Plain JSON values by field name."""
        return asdict(self)


def block_errors(
    records: AcceptanceRecords, calibration: ConfidenceModel, *, n_bins: int = DEFAULT_BINS
) -> dict[str, BlockError]:
    """The block's error in both views, by the names ``conditional`` and ``survival``.

    Args:
        records: telemetry; unfit rows are left out. Clusters are its prompts, else its requests,
            else its blocks.
        calibration: gives confidences from raw logits.
        n_bins: equal-width bins per position.
    """
    rows = records.fitting_rows()
    codes = _clusters(rows)
    logits = rows.confidence_logits
    views = {
        "conditional": (
            calibration.conditional(logits),
            conditional_labels(rows),
            observed_mask(rows),
        ),
        "survival": (
            calibration.survival(logits),
            survival_labels(rows),
            survival_informed_mask(rows),
        ),
    }
    return {
        name: _block_error(p, labels, mask, codes, n_bins)
        for name, (p, labels, mask) in views.items()
    }


def _block_error(
    p: NDArray[np.float32],  # [N, gamma]
    labels: NDArray[np.float32],  # [N, gamma]
    mask: NDArray[np.bool_],  # [N, gamma]
    codes: NDArray[np.intp],  # [N]
    n_bins: int,
) -> BlockError:
    row, position = np.nonzero(mask)
    if len(row) == 0:
        return BlockError(0)
    predicted, label = p[row, position], labels[row, position].astype(np.float64)
    cells = position * n_bins + bin_index(predicted, n_bins)
    values = predicted.astype(np.float64)
    sums = BinSums.weighted(cells, values, label, np.ones(len(row)), p.shape[1] * n_bins)
    moments = BinMoments.of_clusters(sums, cells, label - values, None, codes[row])
    error = debiased_calibration_error(moments)
    if error is None:
        return BlockError(len(row))
    return BlockError(len(row), float(error.root), float(error.low), float(error.high))


def _clusters(rows: AcceptanceRecords) -> NDArray[np.intp]:
    for column in (rows.prompt, rows.request):
        if column is not None:
            return cluster_codes(column)
    return np.arange(len(rows))
