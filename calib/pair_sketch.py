"""Mergeable sketch of neighbouring logits: what the survival model's hazards are fitted on.

Per pair of positions (i, i + 1), 64 x 64 cells of the squashed logits z_i and z_{i+1} hold four
integers: rows, Σz_i, Σz_{i+1} and Σy_i. Rows are those with an observed y_i (l >= i, n >= i - 1);
z_{i+1} exists for every drafted block, whatever was verified, and asking for l >= i + 1 would pick
rows by their outcome. How sketches are filled, merged and stored is :mod:`calib.mergeable_sketch`.

Letters: g = gamma draft positions, C cells of a pair.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError, InvalidInputError
from calib.mergeable_sketch import Integers, MergeableSketch
from calib.squashed_logit import LABEL_UNIT, LOGIT_UNIT, label_units, logit_units, squash_cells

__all__ = ["SIDE", "PairCells", "PairSketch", "pair_cells"]

Floats = NDArray[np.float64]

SIDE = 64  # cells along each axis; hazards differ from those of the rows by a tenth of their error
_CELLS = SIDE * SIDE
_SUMS = ("count", "sum_first", "sum_second", "sum_y")


@dataclass(frozen=True, eq=False, slots=True)
class PairSketch(MergeableSketch):
    """Integer sums per pair and cell; ``+`` merges exactly.

    Attributes:
        gamma: draft positions; there are gamma - 1 pairs.
        scale_exponent: logits are counted as z / 2^scale_exponent; 0 for ordinary heads.
        count: [g - 1, C] rows with an observed y_i.
        sum_first: [g - 1, C] Σz_i, in 2^(scale_exponent - 16).
        sum_second: [g - 1, C] Σz_{i+1}, in the same unit.
        sum_y: [g - 1, C] Σy_i, in 2^-30.
    """

    _magic: ClassVar[bytes] = b"DSPS"
    _version: ClassVar[int] = 1
    _resolution: ClassVar[int] = SIDE
    _sums: ClassVar[tuple[str, ...]] = _SUMS

    gamma: int
    scale_exponent: int
    count: Integers
    sum_first: Integers
    sum_second: Integers
    sum_y: Integers

    @classmethod
    def _of(cls, gamma: int, scale_exponent: int, sums: Sequence[Integers]) -> Self:
        return cls(gamma, scale_exponent, *sums)

    @classmethod
    def _tables(cls, gamma: int) -> tuple[int, int]:
        return gamma - 1, _CELLS

    @property
    def _shape(self) -> tuple[int, int]:
        return self.gamma, self.scale_exponent

    def _count(
        self,
        table: int,
        block: NDArray[np.float32],
        index: NDArray[np.intp],
        labels: NDArray[Any],
    ) -> None:
        first, second = (block[:, table + side].take(index) for side in (0, 1))
        cell = squash_cells(first, SIDE) * SIDE + squash_cells(second, SIDE)
        self.count[table] += np.bincount(cell, minlength=_CELLS)
        values = (logit_units(first), logit_units(second), label_units(labels))
        weighted = zip(_SUMS[1:], values, strict=True)
        for name, units in weighted:
            getattr(self, name)[table] += np.bincount(cell, units, _CELLS).astype(np.int64)


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
