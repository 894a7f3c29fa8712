"""Mergeable sketch of logits and conditional labels: all that a conditional fit reads of its rows.

Per position, 1,024 cells of the squashed logit hold three integers: rows, Σz and Σy. A fit on the
cells (each at its mean logit) differs from a fit on the rows by far less than its noise, and costs
the same for a thousand rows as for a billion.

What enters is every observed conditional label, k <= min(n + 1, l), hard or soft. Unobserved is
never zero. How sketches are filled, merged and stored is :mod:`calib.mergeable_sketch`.

Letters: g = gamma draft positions, C cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from calib.compiled_counting import HardLabelCounter, hard_label_counter
from calib.mergeable_sketch import Integers, MergeableSketch
from calib.observed_rows import LabelSource, ObservedRows
from calib.squashed_logit import (
    CHUNK_ROWS,
    LABEL_UNIT,
    label_units,
    logit_units,
    scaled_logits,
    squash_cells,
    unchecked_logits,
)

__all__ = ["CELLS", "LabelSource", "LogitSketch", "grouped_sketches"]

CELLS = 1024
_COUNTED_ROWS = 1 << 16  # a pass of the compiled loops: their logits stay in a shared cache


@dataclass(frozen=True, eq=False, slots=True)
class LogitSketch(MergeableSketch):
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

    _magic: ClassVar[bytes] = b"DSLS"
    _version: ClassVar[int] = 1
    _resolution: ClassVar[int] = CELLS
    _sums: ClassVar[tuple[str, ...]] = ("count", "sum_z", "sum_y")

    scale_exponent: int
    count: Integers
    sum_z: Integers
    sum_y: Integers

    @classmethod
    def _of(cls, gamma: int, scale_exponent: int, sums: Sequence[Integers]) -> Self:
        return cls(scale_exponent, *sums)

    @classmethod
    def _tables(cls, gamma: int) -> tuple[int, int]:
        return gamma, CELLS

    @property
    def _shape(self) -> tuple[int, int]:
        return self.gamma, self.scale_exponent

    @property
    def gamma(self) -> int:
        """Draft positions."""
        return int(self.count.shape[0])

    @property
    def soft(self) -> bool:
        """Whether any label was strictly between 0 and 1."""
        return bool((self.sum_y & (int(LABEL_UNIT) - 1)).any())

    def _filled(self, logits: NDArray[np.floating], rows: ObservedRows) -> Self:
        counter = hard_label_counter(len(logits), self.gamma, CELLS) if rows.hard else None
        if counter is None or not self._counted(counter, logits, rows):
            return MergeableSketch._filled(self, logits, rows)
        count, sum_z, rejections = counter.counted
        sums = (count, sum_z, int(LABEL_UNIT) * (count - rejections))
        for mine, counted in zip(self._arrays, sums, strict=True):
            np.add(mine, counted, out=mine)
        return self

    def _counted(
        self, counter: HardLabelCounter, logits: NDArray[np.floating], rows: ObservedRows
    ) -> bool:
        """Whether the loops have counted all rows; False where a logit has to be cut or refused."""
        for start in range(0, len(logits), _COUNTED_ROWS):
            part = slice(start, start + _COUNTED_ROWS)
            block = np.ascontiguousarray(unchecked_logits(logits[part], self.scale_exponent))
            if not counter.count(block, *rows.lengths(part)):
                return False
        return True

    def _count(
        self,
        table: int,
        block: NDArray[np.float32],
        index: NDArray[np.intp],
        labels: NDArray[Any],
    ) -> None:
        scaled = block[:, table].take(index)
        cell = squash_cells(scaled, CELLS)
        self.sum_z[table] += _whole(np.bincount(cell, logit_units(scaled), CELLS))
        if labels.dtype == np.bool_:
            cell *= 2
            cell += labels
            counted = np.bincount(cell, minlength=2 * CELLS).reshape(CELLS, 2)
            self.count[table] += counted[:, 0]
            self.count[table] += counted[:, 1]
            self.sum_y[table] += counted[:, 1] * int(LABEL_UNIT)
        else:
            self.count[table] += np.bincount(cell, minlength=CELLS)
            self.sum_y[table] += _whole(np.bincount(cell, label_units(labels), CELLS))


def grouped_sketches(
    confidence_logits: NDArray[np.floating],  # [N, g] raw, finite
    rows: ObservedRows,
    groups: NDArray[np.intp],  # [N] in 0 … number - 1
    number: int,
) -> tuple[LogitSketch, ...]:
    """One sketch a group, at scale 1, all filled in one pass over the rows.

    Raises:
        RecordError: logits that are not finite, or labels outside [0, 1].
    """
    gamma = confidence_logits.shape[1]
    shape = (number, gamma, CELLS)
    sums = [np.zeros(shape, dtype=np.int64) for _ in range(3)]
    for start in range(0, len(groups), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        block = scaled_logits(confidence_logits[part], 0)
        tables = groups[part] * gamma
        cells, logits, labels = [], [], []
        for position, (index, given) in enumerate(rows.positions(part, gamma)):
            own = block[:, position].take(index)
            cells.append((tables.take(index) + position) * CELLS + squash_cells(own, CELLS))
            logits.append(logit_units(own))
            labels.append(label_units(given))
        place = np.concatenate(cells)
        for total, values in zip(sums, (None, logits, labels), strict=True):
            weight = None if values is None else np.concatenate(values)
            counted = _whole(np.bincount(place, weight, total.size))
            np.add(total, counted.reshape(shape), out=total)
    return tuple(LogitSketch(0, *group) for group in zip(*sums, strict=True))


def _whole(sums: NDArray[Any]) -> Integers:
    return sums.astype(np.int64)
