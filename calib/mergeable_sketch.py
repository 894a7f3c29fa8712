"""What sketches of logits and conditional labels share: counting rows, exact merging, bytes.

A sketch holds integer sums per table (a position, or a pair of positions) and cell. They add up to
the same bits in any split and order of the rows, so engines, ranks, hours and restarts need no
care. A kind of sketch says what its cells are and how rows are counted into them; reading rows,
merging and storing is done here, once.

Letters: N rows, g = gamma draft positions, C cells of a table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration_values import checked_gamma
from calib.errors import InvalidInputError, RecordError
from calib.observed_rows import LabelSource, ObservedRows
from calib.records import AcceptanceRecords
from calib.sketch_bytes import pack_sketch, unpack_sketch
from calib.squashed_logit import CHUNK_ROWS, check_scale_exponent, scaled_logits

__all__ = ["MergeableSketch"]

Integers = NDArray[np.int64]


class MergeableSketch(ABC):
    """Integer sums per table and cell; ``+`` merges exactly.

    A subclass is a frozen dataclass whose arrays are named in ``_sums``, ``count`` first.
    """

    __slots__ = ()

    _magic: ClassVar[bytes]  # 4 bytes that name the kind
    _version: ClassVar[int]  # of its bytes
    _resolution: ClassVar[int]  # cells along one axis
    _sums: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def _of(cls, gamma: int, scale_exponent: int, sums: Sequence[Integers]) -> Self:
        """A sketch that owns these sums."""

    @classmethod
    @abstractmethod
    def _tables(cls, gamma: int) -> tuple[int, int]:
        """Tables and cells of each."""

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, int]:
        """γ and scale exponent: what must agree for merging."""

    @abstractmethod
    def _count(
        self,
        table: int,
        block: NDArray[np.float32],  # [chunk, g] scaled logits
        index: NDArray[np.intp],  # [M] rows of the chunk with a label
        labels: NDArray[Any],  # [M] bool or float in [0, 1]
    ) -> None:
        """Add rows to one table, in place."""

    @classmethod
    def empty(cls, gamma: int, *, scale_exponent: int = 0) -> Self:
        """A sketch of no rows.

        Raises:
            InvalidInputError: γ or exponent out of range.
        """
        width = checked_gamma(gamma)
        sums = [np.zeros(cls._tables(width), dtype=np.int64) for _ in cls._sums]
        return cls._of(width, check_scale_exponent(scale_exponent), sums)

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
        return cls.from_rows(records.confidence_logits, ObservedRows.of_records(records, labels))

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
        rows = ObservedRows.of_lengths(accepted, verified, logits.shape)
        return cls.from_rows(logits, rows, scale_exponent=scale_exponent)

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
        logits = _matrix(confidence_logits)
        rows = ObservedRows.of_matrix(labels, logits.shape)
        return cls.from_rows(logits, rows, scale_exponent=scale_exponent)

    @classmethod
    def from_rows(
        cls,
        logits: NDArray[np.floating],  # [N, g] raw, finite
        rows: ObservedRows,
        *,
        scale_exponent: int = 0,
    ) -> Self:
        """Sketch of rows whose labels are known already.

        Raises:
            RecordError: logits that are not finite, or labels outside [0, 1].
        """
        return cls.empty(logits.shape[1], scale_exponent=scale_exponent)._filled(logits, rows)

    @classmethod
    def merged(cls, parts: Iterable[Self]) -> Self:
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

    def __add__(self, other: Self) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        if self._shape != other._shape:
            raise InvalidInputError(
                "other", other._shape, f"merge sketches of one gamma and scale, {self._shape}"
            )
        sums = zip(self._arrays, other._arrays, strict=True)
        return self._of(*self._shape, [mine + theirs for mine, theirs in sums])

    def __eq__(self, other: object) -> bool:
        """Whether all sums agree to the last bit."""
        if not isinstance(other, type(self)):
            return NotImplemented
        return self._shape == other._shape and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(self._arrays, other._arrays, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def rows(self) -> Integers:
        """[tables] observed labels of each."""
        return np.asarray(self._arrays[0].sum(axis=1))

    def to_bytes(self) -> bytes:
        """The sketch as bytes: versioned, checked, a few kB per table."""
        gamma, exponent = self._shape
        fields = (gamma, self._resolution, exponent)
        return pack_sketch(self._magic, self._version, fields, self._arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The sketch that :meth:`to_bytes` wrote.

        Raises:
            FormatError: other, damaged or truncated bytes.
        """
        fields, arrays = unpack_sketch(data, cls._magic, cls._version, cls._stored, fields=3)
        return cls._of(fields[0], fields[2], arrays)

    @classmethod
    def _stored(cls, fields: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Shapes of the stored arrays, from the header fields."""
        gamma, resolution, exponent = fields
        check_scale_exponent(exponent)
        if resolution != cls._resolution:
            raise ValueError(f"{resolution} cells where this release has {cls._resolution}")
        return [cls._tables(checked_gamma(gamma))] * len(cls._sums)

    @property
    def _arrays(self) -> list[Integers]:
        return [getattr(self, name) for name in self._sums]

    def _filled(self, logits: NDArray[np.floating], rows: ObservedRows) -> Self:
        """Count the rows in place; only called on a sketch that nobody else has seen."""
        gamma, exponent = self._shape
        tables = self._tables(gamma)[0]
        for start in range(0, len(logits), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            block = scaled_logits(logits[part], exponent)
            for table, (index, labels) in enumerate(rows.positions(part, tables)):
                self._count(table, block, index, labels)
        return self


def _matrix(confidence_logits: ArrayLike) -> NDArray[np.floating]:
    logits = np.asarray(confidence_logits)
    if logits.dtype.kind in "iu":
        logits = logits.astype(np.float64)
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.dtype.kind != "f":
        shown = (logits.dtype.name, logits.shape)
        raise RecordError("confidence_logits", shown, "give a float array [N, gamma]")
    return logits
