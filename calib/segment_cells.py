"""Segment sketches as they are read: weighted cells of many segments, stacked.

A segment's two levels have few parameters, so 128 cells a position are enough: within one the
confidence bends by less than 10⁻⁴, and many segments fit at once.

Letters: G segments, γ draft positions, M cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError, InvalidInputError
from calib.logit_sketch import CELLS, LogitSketch
from calib.segment_ridge import CellStack
from calib.segment_sketches import FOLDS, SegmentSketches
from calib.segment_tags import POOL, SegmentKey
from calib.sketch_cells import LogitCells
from calib.squashed_logit import LABEL_UNIT, LOGIT_UNIT

__all__ = ["READ_CELLS", "SegmentReader"]

READ_CELLS = 128


@dataclass(frozen=True, eq=False, slots=True)
class SegmentReader:
    """Sketches of one weight each, by ascending weight. Build it with :meth:`of`.

    Attributes:
        parts: what was counted.
        weights: of the rows of each part.
    """

    parts: tuple[SegmentSketches, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(
        cls,
        parts: SegmentSketches | Iterable[SegmentSketches],
        weights: Sequence[float] | None = None,
    ) -> SegmentReader:
        """A reader of one or more sets of sketches, the same for any order of them.

        Args:
            parts: sketches of disjoint rows.
            weights: of the rows of each, as from forgetting or a tenant's cap; 1 when None.

        Raises:
            InvalidInputError: no parts, or parts of different γ, edges or tags.
            ConfigurationError: another number of weights, or one negative or not finite.
        """
        pieces = [parts] if isinstance(parts, SegmentSketches) else list(parts)
        factors = [1.0] * len(pieces) if weights is None else [float(w) for w in weights]
        if not pieces:
            raise InvalidInputError("parts", 0, "give at least one set of sketches")
        if len(factors) != len(pieces) or not all(0.0 <= w < float("inf") for w in factors):
            raise ConfigurationError("weights", factors, f"give {len(pieces)} finite weights >= 0")
        grouped: dict[float, SegmentSketches] = {}
        for piece, factor in zip(pieces, factors, strict=True):
            grouped[factor] = grouped[factor] + piece if factor in grouped else piece
        ordered = sorted(grouped)
        for factor in ordered[1:]:
            grouped[ordered[0]] + grouped[factor]  # refuses different shapes
        return cls(tuple(grouped[factor] for factor in ordered), tuple(ordered))

    @property
    def first(self) -> SegmentSketches:
        """The part that says γ, edges and tags of all."""
        return self.parts[0]

    def seen(self, tag: str) -> tuple[str, ...]:
        """Buckets of a tag that some row had, sorted."""
        return tuple(sorted(set().union(*(part.seen(tag) for part in self.parts))))

    def keys(self, tags: Iterable[str]) -> tuple[SegmentKey, ...]:
        """Segments of these tags that some row belongs to, sorted."""
        wanted = tuple(tags)
        leaves = {leaf for part in self.parts for leaf in part.sketches}
        found = {leaf.restricted(wanted) for leaf in leaves}
        return tuple(sorted(key for key in found if key is not None))

    def cells(self, folds: Sequence[int] = tuple(range(FOLDS))) -> LogitCells:
        """All rows of these folds, at full resolution."""
        sketches, weights = [], []
        for part, weight in zip(self.parts, self.weights, strict=True):
            pool = part.segment(POOL)
            sketches += [pool[fold] for fold in folds]
            weights += [weight] * len(folds)
        return LogitCells.weighted(sketches, weights)

    def rows(self, key: SegmentKey) -> NDArray[np.int64]:
        """[γ] labels counted in a segment, whatever their weight."""
        counted = [sketch.rows for part in self.parts for sketch in part.segment(key)]
        return np.asarray(np.sum(counted, axis=0))

    def stacks(self, keys: Sequence[SegmentKey]) -> tuple[CellStack, ...]:
        """Cells of these segments, one stack a fold."""
        gamma = self.first.gamma
        sums = np.zeros((FOLDS, 3, len(keys), gamma, READ_CELLS))
        for part, weight in zip(self.parts, self.weights, strict=True):
            for place, key in enumerate(keys):
                for fold, sketch in enumerate(part.segment(key)):
                    sums[fold, :, place] += weight * _coarse(sketch)
        return tuple(_stack(fold) for fold in sums)


def joined(stacks: Sequence[CellStack]) -> CellStack:
    """Cells of all folds together."""
    weight = sum(stack.weight for stack in stacks)
    return _stack(
        np.stack(
            [
                np.asarray(weight),
                np.asarray(sum(stack.weight * stack.logit for stack in stacks)),
                np.asarray(sum(stack.positive for stack in stacks)),
            ]
        )
    )


def _coarse(sketch: LogitSketch) -> NDArray[np.float64]:
    """[3, γ, M] count, Σz and Σy, neighbouring cells added exactly."""
    sums = np.stack([sketch.count, sketch.sum_z, sketch.sum_y])
    added = sums.reshape(3, sketch.gamma, READ_CELLS, CELLS // READ_CELLS).sum(axis=-1)
    return np.asarray(added / np.array([1.0, LOGIT_UNIT, LABEL_UNIT])[:, None, None])


def _stack(sums: NDArray[np.float64]) -> CellStack:
    weight, logit, positive = sums
    held = np.where(weight > 0.0, weight, 1.0)
    return CellStack(logit / held, weight, np.minimum(positive, weight))
