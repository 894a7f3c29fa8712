"""Rows of a survival fit: which of them inform a position, and their survival on the way there.

A row informs position k only if it was verified that far, l >= k; see
:mod:`calib.sequential_temperature_scaling` for the trap behind this rule.

Letters: N rows, g = gamma draft positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import RecordError
from calib.labels import checked_lengths
from calib.sts_search import SurvivalObjective

__all__ = ["SurvivalWalk", "survival_targets"]

Labels = NDArray[np.uint8] | NDArray[np.float64]


class SurvivalWalk:
    """The rows of one fit on their way through the positions.

    Keeps, for the rows that inform the current position, their survival with the numbers so far
    and with all temperatures 1.

    Args:
        logits: [N, g] raw.
        labels: [N, g] survival labels, uint8 or fp64.
        lengths: [N] verified lengths; None when all are g.
        n_bins: bins of the objectives.
    """

    def __init__(
        self,
        logits: NDArray[np.float32],
        labels: Labels,
        lengths: NDArray[Any] | None,
        n_bins: int,
    ) -> None:
        self._logits = logits
        self._labels = labels
        self._lengths = lengths
        self._n_bins = n_bins
        self._rows: NDArray[np.intp] | slice = slice(None)
        self._survival = np.ones(len(logits), dtype=np.float32)
        self._uncalibrated = self._survival
        self._current: tuple[SurvivalObjective, SurvivalObjective] | None = None

    def objectives(self, position: int) -> tuple[SurvivalObjective, SurvivalObjective]:
        """The errors of a position (from 0) on top of the numbers so far, and of all ones."""
        if self._lengths is not None:
            # Rows with l >= k, of which those of the last position are the only candidates.
            keep = self._lengths[self._rows] > position
            if not keep.all():
                self._rows = np.arange(len(self._logits))[self._rows][keep]
                self._survival = self._survival[keep]
                self._uncalibrated = self._uncalibrated[keep]
        logits = np.ascontiguousarray(self._logits[self._rows, position])
        labels = self._labels[self._rows, position].copy()  # contiguous
        self._current = (
            SurvivalObjective(self._survival, logits, labels, self._n_bins),
            SurvivalObjective(self._uncalibrated, logits, labels, self._n_bins),
        )
        return self._current

    def continue_with(self, temperature: float) -> None:
        """Fix the number of the current position."""
        if self._current is not None:
            self._survival = self._current[0].survive(temperature)
            self._uncalibrated = self._current[1].survive(1.0)


def survival_targets(
    y: ArrayLike | None, verified: ArrayLike | None, rows: int, gamma: int
) -> tuple[NDArray[Any] | None, Labels]:
    """Verified lengths [N], None when all rows are full, and survival labels [N, g].

    Args:
        y: accepted lengths [N], or survival labels [N, g] in [0, 1], NaN where unverified.
        verified: verified lengths [N]; None for fully verified rows (as far as labels are known).
        rows: N.
        gamma: g.

    Raises:
        RecordError: arrays of wrong shape, type or range.
    """
    if y is None:
        raise RecordError("y", None, "give accepted lengths [N] or survival labels [N, gamma]")
    given = np.asarray(y)
    full = np.full(rows, gamma) if verified is None else np.asarray(verified)
    if given.ndim == 1:
        _check_rows("y", len(given), rows)
        lengths, accepted = checked_lengths(full, given, gamma)
        labels: Labels = np.less.outer(np.arange(gamma), accepted).T.astype(np.uint8)
    else:
        labels, known = _survival_matrix(given, (rows, gamma))
        _check_rows("verified", len(full), rows)
        lengths, _ = checked_lengths(full, np.zeros_like(full), gamma)
        lengths = np.minimum(lengths, known)
    return (None if bool((lengths == gamma).all()) else lengths), labels


def _check_rows(field: str, found: int, rows: int) -> None:
    if found != rows:
        raise RecordError(field, found, f"give one entry per row of X, {rows}")


def _survival_matrix(
    given: NDArray[Any], shape: tuple[int, int]
) -> tuple[Labels, NDArray[np.int64]]:
    """Labels [N, g], uint8 when all are 0 or 1, and the positions before a row's first NaN [N]."""
    if given.shape != shape or given.dtype.kind not in "biuf":
        shown = (given.dtype.name, given.shape)
        raise RecordError("y", shown, f"give accepted lengths [N] or survival labels {shape}")
    unknown = np.isnan(given.astype(np.float64))
    known = np.where(unknown.any(axis=1), unknown.argmax(axis=1), shape[1])
    if not np.array_equal(known, shape[1] - unknown.sum(axis=1)):
        raise RecordError(
            "y", "NaN", "labels may be NaN only from the first unverified position on"
        )
    values = np.where(unknown, 0, given)
    outside = (values < 0) | (values > 1)
    if outside.any():
        raise RecordError("y", float(values[outside][0]), "survival labels must lie in [0, 1]")
    hard = values.astype(np.uint8)
    return (hard if np.array_equal(hard, values) else values.astype(np.float64)), known
