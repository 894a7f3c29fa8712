"""The champion's calibration error over time, from additive sums: no row has to be kept.

Survival by the served numbers, 15 equal-width bins, all positions together: debiased L2 error with
its 95 % interval, rows taken as independent (requests share luck, so it is a little too narrow).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from calib.bin_sums import BinSums
from calib.clusters import BinMoments
from calib.debiased_calibration_error import debiased_calibration_error
from calib.reliability import DEFAULT_BINS, bin_index

__all__ = ["MOST_POINTS", "ErrorSums", "HistoryPoint", "thinned"]

MOST_POINTS: Final = 200

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """One point of the history.

    Attributes:
        at: seconds since the epoch.
        rows: rows since the champion was published.
        evidence_log10_max: largest evidence of the pooled detectors, decimal logarithm.
        ece: debiased error over the rows since the last point; None where too few.
        ece_low, ece_high: its 95 % interval.
    """

    at: float
    rows: int
    evidence_log10_max: float
    ece: float | None
    ece_low: float | None
    ece_high: float | None


@dataclass(frozen=True, slots=True, eq=False)
class ErrorSums:
    """Sums over (position, bin) cells; ``+`` merges.

    Attributes:
        rows: rows folded.
        sums: [4, γ · bins] labels, Σp, Σy and Σ(y − p)² of each cell.
    """

    rows: int
    sums: Floats

    @classmethod
    def of(
        cls,
        survival: NDArray[np.float32],  # [N, γ]
        verified: NDArray[np.uint8],  # [N]
        accepted: NDArray[np.uint8],  # [N]
    ) -> Self:
        """Sums of rows; a row informs position k where k ≤ ℓ."""
        rows, gamma = survival.shape
        index = np.arange(gamma)
        known = index < verified[:, None]
        p = survival[known]
        y = (index < accepted[:, None])[known].astype(np.float64)
        position = np.broadcast_to(index, survival.shape)[known]
        cells = position * DEFAULT_BINS + bin_index(p, DEFAULT_BINS)
        values = p.astype(np.float64)
        size = gamma * DEFAULT_BINS
        parts = (None, values, y, (y - values) ** 2)
        return cls(
            rows, np.stack([np.bincount(cells, part, size).astype(np.float64) for part in parts])
        )

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(self.rows + other.rows, self.sums + other.sums)

    def error(self) -> tuple[float, float, float] | None:
        """Debiased error and its interval; None where no cell holds two labels."""
        count, p, y, square = self.sums
        variance = p * (1.0 - np.divide(p, count, out=np.zeros_like(p), where=count > 0))
        zeros = np.zeros_like(p)
        sums = BinSums.unweighted(count, p, y, square, np.maximum(variance, 0.0), zeros)
        found = debiased_calibration_error(BinMoments.of_independent_rows(sums))
        if found is None:
            return None
        return found.root, found.low, found.high


def thinned(points: tuple[HistoryPoint, ...]) -> tuple[HistoryPoint, ...]:
    """At most :data:`MOST_POINTS`: every other one of the older half goes."""
    if len(points) <= MOST_POINTS:
        return points
    half = len(points) // 2
    return points[:half:2] + points[half:]
