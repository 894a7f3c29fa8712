"""Which rows of a batch carry a conditional label of a position, and the label.

Observed is k <= min(n + 1, l), hard or soft. Unobserved is never zero.

Letters: N rows, g = gamma draft positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.errors import ConfigurationError, RecordError
from calib.labels import checked_lengths
from calib.records import AcceptanceRecords

__all__ = ["LabelSource", "ObservedRows"]

LabelSource = Literal["hard", "soft"]


class ObservedRows:
    """Which rows carry a label of a position, and the label; chunk by chunk, without copies.

    Build it with one of the class methods.
    """

    def __init__(
        self,
        longest: NDArray[np.integer] | None,  # [N] l, 0 for rows without a label; None: no lengths
        accepted: NDArray[np.integer] | None,  # [N] n, likewise
        matrix: NDArray[Any] | None,  # [N, g] labels, NaN where unknown
    ) -> None:
        self._longest = longest
        self._accepted = accepted
        self._matrix = matrix

    @classmethod
    def of_targets(
        cls,
        y: ArrayLike | None,  # [N] accepted lengths, or [N, g] conditional labels
        verified: ArrayLike | None,  # [N]; only with accepted lengths
        shape: tuple[int, ...],  # of the logits, [N, g]
    ) -> ObservedRows:
        """What an estimator is given as ``y``: lengths or labels.

        Raises:
            RecordError: shapes or values that are wrong, or verified lengths beside labels.
        """
        given = np.asarray(y)
        if given.ndim == 1:
            return cls.of_lengths(given, verified, shape)
        if verified is not None:
            raise RecordError("verified", "given", "mark unobserved labels as NaN instead")
        return cls.of_matrix(given, shape)

    @classmethod
    def of_lengths(
        cls,
        accepted: ArrayLike | None,  # [N]
        verified: ArrayLike | None,  # [N]; fully verified when None
        shape: tuple[int, ...],  # of the logits, [N, g]
    ) -> ObservedRows:
        """Hard labels of rows with these lengths.

        Raises:
            RecordError: no whole numbers, another number of rows, or not 0 <= n <= l <= g.
        """
        longest, reached = checked_lengths(verified, accepted, shape[1])
        if len(reached) != shape[0]:
            raise RecordError("accepted", len(reached), f"give {shape[0]} rows, as in logits")
        return cls(longest, reached, None)

    @classmethod
    def of_matrix(
        cls,
        labels: ArrayLike | None,  # [N, g] in [0, 1], NaN where unobserved
        shape: tuple[int, ...],  # of the logits, [N, g]
    ) -> ObservedRows:
        """Labels, hard or soft.

        Raises:
            RecordError: another shape, or no numbers.
        """
        values = np.asarray(labels)
        if values.shape != shape or values.dtype.kind not in "biuf":
            shown = (values.dtype.name, values.shape)
            raise RecordError("labels", shown, f"give labels for logits of shape {shape}")
        return cls(None, None, values)

    @classmethod
    def of_records(cls, records: AcceptanceRecords, labels: LabelSource) -> ObservedRows:
        """The usable rows of telemetry.

        Raises:
            RecordError: soft labels that the records lack.
            ConfigurationError: a word other than ``"hard"`` and ``"soft"``.
        """
        if labels not in ("hard", "soft"):
            raise ConfigurationError("labels", labels, "give 'hard' or 'soft'")
        # No label at all in the rows that must stay out: cheaper than selecting the others.
        longest = np.where(records.usable(), records.verified, records.verified.dtype.type(0))
        if labels == "hard":
            return cls(longest, records.accepted, None)
        if records.soft_labels is None:
            raise RecordError("soft_labels", None, "record soft labels, or use labels='hard'")
        # c* teaches about a position only in blocks that reached it, as acceptance does.
        return cls(longest, records.accepted, records.soft_labels)

    @property
    def soft(self) -> bool:
        """Whether any observed label is strictly between 0 and 1."""
        if self._matrix is None:
            return False
        between = (self._matrix > 0.0) & (self._matrix < 1.0)
        if self._accepted is not None:
            between &= np.arange(between.shape[1]) < self.lengths(slice(None))[1][:, None]
        return bool(between.any())

    @property
    def hard(self) -> bool:
        """Whether accepted lengths are all that is known, and so all labels 0 or 1."""
        return self._matrix is None

    def lengths(self, part: slice) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
        """n and min(n + 1, l), the last observed position, of a chunk of rows."""
        if self._accepted is None or self._longest is None:
            raise RecordError("accepted", None, "these labels were given without lengths")
        # int16: n + 1 does not fit the uint8 of telemetry.
        accepted = np.ascontiguousarray(self._accepted[part], np.int16)
        # One length for all rows stays one number.
        longest = self._longest[part].astype(np.int16, copy=False)
        return accepted, np.minimum(accepted + np.int16(1), longest)

    def positions(self, part: slice, count: int) -> Iterator[tuple[NDArray[np.intp], NDArray[Any]]]:
        """Per position: rows of the chunk with a label, and the labels (bool when hard)."""
        lengths = None if self._accepted is None else self.lengths(part)
        for position in range(count):
            known = None if lengths is None else lengths[1] > position
            if self._matrix is not None:
                labels = self._matrix[part, position].astype(np.float64)
                given = ~np.isnan(labels)
                index = np.flatnonzero(given if known is None else known & given)
                yield index, labels.take(index)
            elif lengths is not None and known is not None:
                index = np.flatnonzero(known)
                yield index, lengths[0].take(index) > position
