"""Mergeable sketch of neighbouring logits: what the survival model's hazards are fitted on.

Per pair of positions (i, i + 1), 64 x 64 cells of the squashed logits z_i and z_{i+1} hold four
integers: rows, Σz_i, Σz_{i+1} and Σy_i. Rows are those with an observed y_i (l >= i, n >= i - 1);
z_{i+1} exists for every drafted block, whatever was verified, and asking for l >= i + 1 would pick
rows by their outcome. Sums merge to the same bits in any split and order.

Letters: N rows, g = gamma draft positions, C cells of a pair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.calibration_values import checked_gamma
from calib.errors import ConfigurationError, InvalidInputError, RecordError
from calib.labels import checked_lengths
from calib.logit_sketch import LabelSource, ObservedRows
from calib.records import AcceptanceRecords
from calib.sketch_bytes import pack_sketch, unpack_sketch
from calib.squashed_logit import (
    CHUNK_ROWS,
    LABEL_UNIT,
    LOGIT_UNIT,
    check_scale_exponent,
    label_units,
    logit_units,
    scaled_logits,
    squash_cells,
)
from calib.temperature_estimator import checked_logits

__all__ = ["SIDE", "PairCells", "PairSketch", "pair_cells"]

Floats = NDArray[np.float64]

SIDE = 64  # cells along each axis; hazards differ from those of the rows by a tenth of their error
_CELLS = SIDE * SIDE
_MAGIC = b"DSPS"
_VERSION = 1
_SUMS = ("count", "sum_first", "sum_second", "sum_y")


@dataclass(frozen=True, eq=False, slots=True)
class PairSketch:
    """Integer sums per pair and cell; ``+`` merges exactly.

    Attributes:
        gamma: draft positions; there are gamma - 1 pairs.
        scale_exponent: logits are counted as z / 2^scale_exponent; 0 for ordinary heads.
        count: [g - 1, C] rows with an observed y_i.
        sum_first: [g - 1, C] Σz_i, in 2^(scale_exponent - 16).
        sum_second: [g - 1, C] Σz_{i+1}, in the same unit.
        sum_y: [g - 1, C] Σy_i, in 2^-30.
    """

    gamma: int
    scale_exponent: int
    count: NDArray[np.int64]
    sum_first: NDArray[np.int64]
    sum_second: NDArray[np.int64]
    sum_y: NDArray[np.int64]

    @classmethod
    def empty(cls, gamma: int, *, scale_exponent: int = 0) -> Self:
        """A sketch of no rows.

        Raises:
            InvalidInputError: γ or exponent out of range.
        """
        width = checked_gamma(gamma)
        sums = (np.zeros((width - 1, _CELLS), dtype=np.int64) for _ in _SUMS)
        return cls(width, check_scale_exponent(scale_exponent), *sums)

    @classmethod
    def from_records(cls, records: AcceptanceRecords, *, labels: LabelSource = "hard") -> Self:
        """Sketch of the usable rows of telemetry; ``labels`` as in ``LogitSketch``.

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
            FitRefusedError: no rows.
        """
        logits = checked_logits(confidence_logits)
        gamma = logits.shape[1]
        full = np.full(len(logits), gamma) if verified is None else verified
        longest, reached = checked_lengths(full, accepted, gamma)
        if len(reached) != len(logits):
            raise RecordError("accepted", len(reached), f"give {len(logits)} rows, as in logits")
        sketch = cls.empty(gamma, scale_exponent=scale_exponent)
        return sketch._filled(logits, ObservedRows.of_lengths(longest, reached))

    def __add__(self, other: PairSketch) -> PairSketch:
        if not isinstance(other, PairSketch):
            return NotImplemented
        if self._shape != other._shape:
            raise InvalidInputError(
                "other", other._shape, f"merge sketches of one gamma and scale, {self._shape}"
            )
        sums = (getattr(self, name) + getattr(other, name) for name in _SUMS)
        return PairSketch(*self._shape, *sums)

    def __eq__(self, other: object) -> bool:
        """Whether all sums agree to the last bit."""
        if not isinstance(other, PairSketch):
            return NotImplemented
        return self._shape == other._shape and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _SUMS
        )

    __hash__ = None  # type: ignore[assignment]  # holds arrays

    @property
    def rows(self) -> NDArray[np.int64]:
        """[g - 1] observed labels per pair."""
        return np.asarray(self.count.sum(axis=1))

    def to_bytes(self) -> bytes:
        """The sketch as bytes, versioned and checked."""
        fields = (self.gamma, SIDE, self.scale_exponent)
        return pack_sketch(_MAGIC, _VERSION, fields, [getattr(self, name) for name in _SUMS])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The sketch that :meth:`to_bytes` wrote.

        Raises:
            FormatError: other, damaged or truncated bytes.
        """
        fields, arrays = unpack_sketch(data, _MAGIC, _VERSION, _shapes, fields=3)
        return cls(fields[0], fields[2], *arrays)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.gamma, self.scale_exponent

    def _filled(self, logits: NDArray[np.floating], rows: ObservedRows) -> Self:
        """Count the rows in place; only called on a sketch that nobody else has seen."""
        for start in range(0, len(logits), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            block = scaled_logits(logits[part], self.scale_exponent)
            for pair, (index, labels) in enumerate(rows.positions(part, self.gamma - 1)):
                first, second = (block[:, pair + side].take(index) for side in (0, 1))
                self._count(pair, first, second, labels)
        return self

    def _count(
        self,
        pair: int,
        first: NDArray[np.float32],
        second: NDArray[np.float32],
        labels: NDArray[Any],
    ) -> None:
        cell = squash_cells(first, SIDE) * SIDE + squash_cells(second, SIDE)
        label = labels * LABEL_UNIT if labels.dtype == np.bool_ else label_units(labels)
        self.count[pair] += np.bincount(cell, minlength=_CELLS)
        weighted = zip(_SUMS[1:], (logit_units(first), logit_units(second), label), strict=True)
        for name, units in weighted:
            getattr(self, name)[pair] += np.bincount(cell, units, _CELLS).astype(np.int64)


@dataclass(frozen=True, eq=False, slots=True)
class PairCells:
    """The cells of one pair that hold rows, M of them.

    Attributes:
        first: [M] mean z_i.
        second: [M] mean z_{i+1}.
        weight: [M] Σw.
        positive: [M] Σwy_i.
        unit: power of two of the size of the logits, for arithmetic near 1.
    """

    first: Floats
    second: Floats
    weight: Floats
    positive: Floats
    unit: float


def pair_cells(
    sketches: Iterable[PairSketch], weights: Iterable[float] | None = None
) -> tuple[PairCells, ...]:
    """Weighted cells of one or more sketches, one entry per pair.

    Args:
        sketches: of one γ and scale.
        weights: of the rows of each, >= 0; 1 when None.

    Raises:
        ConfigurationError: another number of weights, or a weight that is negative.
        InvalidInputError: no sketches, or sketches of different γ or scale.
    """
    parts = list(sketches)
    factors = [1.0] * len(parts) if weights is None else [float(weight) for weight in weights]
    if not parts:
        raise InvalidInputError("sketches", 0, "give at least one sketch")
    if len(factors) != len(parts) or not all(0.0 <= w < float("inf") for w in factors):
        raise ConfigurationError("weights", factors, f"give {len(parts)} finite weights >= 0")
    grouped: dict[float, PairSketch] = {}
    for sketch, weight in zip(parts, factors, strict=True):
        grouped[weight] = grouped[weight] + sketch if weight in grouped else sketch
    # By ascending weight: then no sum depends on the order the buckets came in.
    buckets = [(weight, grouped[weight]) for weight in sorted(grouped)]
    shape = buckets[0][1]
    for _, sketch in buckets[1:]:
        shape = shape + sketch  # refuses different shapes
    return tuple(_cells(buckets, pair) for pair in range(shape.gamma - 1))


def _cells(buckets: list[tuple[float, PairSketch]], pair: int) -> PairCells:
    unit = 2.0 ** buckets[0][1].scale_exponent
    sizes = (1.0, unit / LOGIT_UNIT, unit / LOGIT_UNIT, 1.0 / LABEL_UNIT)
    sums = {
        name: sum(weight * (getattr(sketch, name)[pair] * size) for weight, sketch in buckets)
        for name, size in zip(_SUMS, sizes, strict=True)
    }
    held = np.flatnonzero(sums["count"])
    weight = np.asarray(sums["count"])[held]
    return PairCells(
        first=np.asarray(sums["sum_first"])[held] / weight,
        second=np.asarray(sums["sum_second"])[held] / weight,
        weight=weight,
        positive=np.asarray(sums["sum_y"])[held],
        unit=unit,
    )


def _shapes(fields: tuple[int, ...]) -> list[tuple[int, ...]]:
    gamma, side, exponent = fields
    check_scale_exponent(exponent)
    if side != SIDE:
        raise ValueError(f"{side} cells a side where this release has {SIDE}")
    return [(checked_gamma(gamma) - 1, _CELLS)] * len(_SUMS)
