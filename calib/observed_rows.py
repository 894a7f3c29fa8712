"""Which rows of a batch carry a conditional label of a position, and the label.

Observed is k <= min(n + 1, l), hard or soft. Unobserved is never zero.

Letters: N rows, g = gamma draft positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError, RecordError
from calib.records import AcceptanceRecords

__all__ = ["LabelSource", "ObservedRows"]

LabelSource = Literal["hard", "soft"]


class ObservedRows:
    """Which rows carry a label of a position, and the label; chunk by chunk, without copies.

    Build it with one of the class methods.
    """

    def __init__(
        self,
        limit: NDArray[np.integer] | None,  # [N] last observed position, 0 for none
        accepted: NDArray[np.integer] | None,  # [N]
        matrix: NDArray[Any] | None,  # [N, g] labels, NaN where unknown
    ) -> None:
        self._limit = limit
        self._accepted = accepted
        self._matrix = matrix

    @classmethod
    def of_lengths(
        cls, verified: NDArray[np.integer], accepted: NDArray[np.integer]
    ) -> ObservedRows:
        """Hard labels of rows with these lengths, 0 <= n <= l."""
        # n + 1 as int16: accepted lengths are uint8 in telemetry.
        limit = np.minimum(accepted.astype(np.int16) + 1, verified)
        return cls(limit, accepted, None)

    @classmethod
    def of_matrix(cls, labels: NDArray[Any]) -> ObservedRows:
        """Labels [N, g], NaN where unobserved."""
        return cls(None, None, labels)

    @classmethod
    def of_records(cls, records: AcceptanceRecords, labels: LabelSource) -> ObservedRows:
        """The usable rows of telemetry.

        Raises:
            RecordError: soft labels that the records lack.
            ConfigurationError: a word other than ``"hard"`` and ``"soft"``.
        """
        if labels not in ("hard", "soft"):
            raise ConfigurationError("labels", labels, "give 'hard' or 'soft'")
        limit = np.minimum(records.accepted.astype(np.int16) + 1, records.verified)
        # No label at all in the rows that must stay out: cheaper than selecting the others.
        limit[~records.usable()] = 0
        if labels == "hard":
            return cls(limit, records.accepted, None)
        if records.soft_labels is None:
            raise RecordError("soft_labels", None, "record soft labels, or use labels='hard'")
        # c* teaches about a position only in blocks that reached it, as acceptance does.
        return cls(limit, None, records.soft_labels)

    @property
    def hard_lengths(self) -> tuple[NDArray[np.integer], NDArray[np.integer]] | None:
        """Accepted length and last observed position of all rows; None for other labels."""
        if self._accepted is None or self._limit is None:
            return None
        return self._accepted, self._limit

    def positions(self, part: slice, count: int) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """Per position: rows of the chunk with a label, and the labels (bool when hard)."""
        for position in range(count):
            known = None if self._limit is None else self._limit[part] > position
            if self._matrix is not None:
                labels = self._matrix[part, position].astype(np.float64)
                given = ~np.isnan(labels)
                index = np.flatnonzero(given if known is None else known & given)
                yield index, labels.take(index)
            elif self._accepted is not None and known is not None:
                index = np.flatnonzero(known)
                yield index, self._accepted[part].take(index) > position
