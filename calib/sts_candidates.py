"""Which candidate temperatures are still worth an exact evaluation, and in which order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib.sts_screen import SurvivalScreen

__all__ = ["CandidateOrder"]

_SLACK = 1e-9  # above the rounding of an evaluated error, far below any bound's looseness


class CandidateOrder:
    """Hands out candidates, the likeliest first, and drops those proven worse than the best.

    Candidates that could still tie with the best are handed out, so rules for ties stay exact.
    Without a screen every candidate is handed out in the given order.

    Args:
        temperatures: [C] candidates.
        screen: bounds on their errors, or None.

    Attributes:
        estimates: [C] estimated errors, those of the likeliest candidates the best; 0 without a
            screen.
    """

    def __init__(self, temperatures: NDArray[np.float64], screen: SurvivalScreen | None) -> None:
        self._temperatures = temperatures
        self._screen = screen
        self._level = 0
        self._bound = np.zeros(len(temperatures))
        self._left = list(range(len(temperatures)))
        self.estimates = np.zeros(len(temperatures))
        if screen is not None:
            self._bound, coarse = screen.bounds(temperatures)
            self.estimates = screen.sharpen(temperatures, coarse)
            self._left = [int(index) for index in np.argsort(self.estimates, kind="stable")]

    def next(self, lowest: float) -> int | None:
        """Index of the next candidate that may reach ``lowest``; None when there is none.

        Args:
            lowest: the smallest error evaluated so far, infinity before the first.
        """
        self._drop(lowest)
        while np.isfinite(lowest) and self._left and self._refine():
            self._drop(lowest)
        return self._left.pop(0) if self._left else None

    def _refine(self) -> bool:
        """Tighten the bounds of what is left with the next level; False when there is none."""
        if self._screen is None or self._level + 1 >= len(self._screen.levels):
            return False
        self._level += 1
        left = np.array(self._left)
        finer, _ = self._screen.bounds(self._temperatures[left], self._level)
        self._bound[left] = np.maximum(self._bound[left], finer)
        return True

    def _drop(self, lowest: float) -> None:
        self._left = [index for index in self._left if self._bound[index] <= lowest + _SLACK]
