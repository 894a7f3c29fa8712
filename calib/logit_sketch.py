"""Mergeable sketch of logits and conditional labels: all that a conditional fit reads of its rows.

Per position, 1,024 cells of the squashed logit hold three integers: rows, Σz and Σy. They add up to
the same bits in any split and order, so engines, ranks, hours and restarts need no care. A fit on
the cells (each at its mean logit) differs from a fit on the rows by far less than its noise, and
costs the same for a thousand rows as for a billion.

What enters is every observed conditional label, k <= min(n + 1, l), hard or soft. Unobserved is
never zero.

Letters: N rows, g = gamma draft positions, C cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration_values import checked_gamma
from calib.errors import ConfigurationError, InvalidInputError, RecordError
from calib.labels import checked_lengths
from calib.records import AcceptanceRecords
from calib.sketch_bytes import pack_sketch, unpack_sketch
from calib.squashed_logit import (
    CHUNK_ROWS,
    LABEL_UNIT,
    check_scale_exponent,
    label_units,
    logit_units,
    scaled_logits,
    squash_cells,
)

__all__ = ["CELLS", "LabelSource", "LogitSketch", "ObservedRows"]

LabelSource = Literal["hard", "soft"]

CELLS = 1024
_MAGIC = b"DSLS"
_VERSION = 1
_SUMS = ("count", "sum_z", "sum_y")


@dataclass(frozen=True, eq=False, slots=True)
class LogitSketch:
    """Integer sums per position and cell; ``+`` merges exactly.

    Attributes:
        scale_exponent: logits are counted as z / 2^scale_exponent; 0 for ordinary heads. Only
            sketches of one exponent merge.
        count: [g, C] rows with an observed label.
        sum_z: [g, C] Σz, in 2^(scale_exponent - 16).
        sum_y: [g, C] Σy, in 2^-30.

    Examples:
        >>> rows = LogitSketch.from_lengths([[3.0, 1.0], [2.0, 0.5]], accepted=[1, 0])
        >>> rows.rows.tolist()
        [2, 1]
    """

    scale_exponent: int
    count: NDArray[np.int64]
    sum_z: NDArray[np.int64]
    sum_y: NDArray[np.int64]

    @classmethod
    def empty(cls, gamma: int, *, scale_exponent: int = 0) -> Self:
        """A sketch of no rows.

        Raises:
            InvalidInputError: γ or exponent out of range.
        """
        shape = (checked_gamma(gamma), CELLS)
        sums = (np.zeros(shape, dtype=np.int64) for _ in _SUMS)
        return cls(check_scale_exponent(scale_exponent), *sums)

    @classmethod
    def from_records(cls, records: AcceptanceRecords, *, labels: LabelSource = "hard") -> Self:
        """Sketch of the usable rows of telemetry.

        Args:
            records: telemetry; nothing of it is copied.
            labels: ``"hard"`` acceptance, or ``"soft"`` labels where they are known.

        Raises:
            RecordError: soft labels that the records lack.
            ConfigurationError: another word.
        """
        sketch = cls.empty(records.gamma)
        return sketch._filled(records.confidence_logits, ObservedRows.of_records(records, labels))

    @classmethod
    def from_lengths(
        cls,
        confidence_logits: ArrayLike,  # [N, g] raw, finite
        accepted: ArrayLike,  # [N]
        verified: ArrayLike | None = None,  # [N]
        *,
        scale_exponent: int = 0,
    ) -> Self:
        """Sketch of hard labels from accepted and verified lengths (fully verified when None).

        Raises:
            RecordError: shapes or values that are wrong.
        """
        logits = _matrix(confidence_logits)
        gamma = logits.shape[1]
        full = np.full(len(logits), gamma) if verified is None else verified
        longest, reached = checked_lengths(full, accepted, gamma)
        if len(reached) != len(logits):
            raise RecordError("accepted", len(reached), f"give {len(logits)} rows, as in logits")
        sketch = cls.empty(gamma, scale_exponent=scale_exponent)
        return sketch._filled(logits, ObservedRows.of_lengths(longest, reached))

    @classmethod
    def from_labels(
        cls,
        confidence_logits: ArrayLike,  # [N, g] raw, finite
        labels: ArrayLike,  # [N, g] in [0, 1], NaN where unobserved
        *,
        scale_exponent: int = 0,
    ) -> Self:
        """Sketch of conditional labels, hard or soft.

        Raises:
            RecordError: shapes or values that are wrong.
        """
        logits, values = _matrix(confidence_logits), np.asarray(labels)
        if values.shape != logits.shape or values.dtype.kind not in "biuf":
            shown = (values.dtype.name, values.shape)
            raise RecordError("labels", shown, f"give labels for logits of shape {logits.shape}")
        sketch = cls.empty(logits.shape[1], scale_exponent=scale_exponent)
        return sketch._filled(logits, ObservedRows.of_matrix(values))

    @classmethod
    def merged(cls, parts: Iterable[LogitSketch]) -> LogitSketch:
        """The sketch of all rows of all parts, to the same bits in any order.

        Raises:
            InvalidInputError: no parts, or parts of different γ or scale.
        """
        pieces = list(parts)
        if not pieces:
            raise InvalidInputError("parts", 0, "give at least one sketch")
        total = pieces[0]
        for piece in pieces[1:]:
            total = total + piece
        return total

    def __add__(self, other: LogitSketch) -> LogitSketch:
        if not isinstance(other, LogitSketch):
            return NotImplemented
        if self._shape != other._shape:
            raise InvalidInputError(
                "other", other._shape, f"merge sketches of one gamma and scale, {self._shape}"
            )
        sums = (getattr(self, name) + getattr(other, name) for name in _SUMS)
        return LogitSketch(self.scale_exponent, *sums)

    def __eq__(self, other: object) -> bool:
        """Whether all sums agree to the last bit."""
        if not isinstance(other, LogitSketch):
            return NotImplemented
        return self._shape == other._shape and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _SUMS
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return int(self.count.shape[0])

    @property
    def rows(self) -> NDArray[np.int64]:
        """[g] observed labels per position."""
        return np.asarray(self.count.sum(axis=1))

    @property
    def soft(self) -> bool:
        """Whether any label was strictly between 0 and 1."""
        return bool((self.sum_y % int(LABEL_UNIT)).any())

    def to_bytes(self) -> bytes:
        """The sketch as bytes: versioned, checked, a few kB per position."""
        fields = (self.gamma, CELLS, self.scale_exponent)
        return pack_sketch(_MAGIC, _VERSION, fields, [getattr(self, name) for name in _SUMS])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The sketch that :meth:`to_bytes` wrote.

        Raises:
            FormatError: other, damaged or truncated bytes.
        """
        fields, arrays = unpack_sketch(data, _MAGIC, _VERSION, _shapes, fields=3)
        return cls(fields[2], *arrays)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.gamma, self.scale_exponent

    def _filled(self, logits: NDArray[np.floating], rows: ObservedRows) -> Self:
        """Count the rows in place; only called on a sketch that nobody else has seen."""
        for start in range(0, len(logits), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            block = scaled_logits(logits[part], self.scale_exponent)
            for position, (index, labels) in enumerate(rows.positions(part, self.gamma)):
                self._count(position, block[:, position].take(index), labels)
        return self

    def _count(self, position: int, scaled: NDArray[np.float32], labels: NDArray[Any]) -> None:
        cell = squash_cells(scaled, CELLS)
        self.sum_z[position] += _whole(np.bincount(cell, logit_units(scaled), CELLS))
        if labels.dtype == np.bool_:
            cell *= 2
            cell += labels
            counted = np.bincount(cell, minlength=2 * CELLS).reshape(CELLS, 2)
            self.count[position] += counted[:, 0]
            self.count[position] += counted[:, 1]
            self.sum_y[position] += counted[:, 1] * int(LABEL_UNIT)
        else:
            self.count[position] += np.bincount(cell, minlength=CELLS)
            self.sum_y[position] += _whole(np.bincount(cell, label_units(labels), CELLS))


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


def _whole(sums: NDArray[Any]) -> NDArray[np.int64]:
    return sums.astype(np.int64)


def _matrix(confidence_logits: ArrayLike) -> NDArray[np.floating]:
    logits = np.asarray(confidence_logits)
    if logits.dtype.kind in "iu":
        logits = logits.astype(np.float64)
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.dtype.kind != "f":
        shown = (logits.dtype.name, logits.shape)
        raise RecordError("confidence_logits", shown, "give a float array [N, gamma]")
    return logits


def _shapes(fields: tuple[int, ...]) -> list[tuple[int, ...]]:
    gamma, cells, exponent = fields
    check_scale_exponent(exponent)
    if cells != CELLS:
        raise ValueError(f"{cells} cells where this release has {CELLS}")
    return [(checked_gamma(gamma), CELLS)] * len(_SUMS)
