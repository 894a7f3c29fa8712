"""The two loops that count hard labels into cells of a logit sketch, plain Python for a compiler.

:mod:`calib.compiled_counting` compiles them and says which one a batch is for; uncompiled they run
too, slowly. :mod:`calib.squashed_logit` has the same arithmetic, operation by operation, so that
all ways of counting give the same integers.

- :func:`count_observed` visits what was observed. A row ends where it was rejected, which no
  processor foresees: that costs as much as two labels.
- :func:`count_all` computes every position in vector registers, and adds 0 where nothing was
  observed: no branch depends on what happened.

Both add to ``sums`` [g, C, 2], rows and Σz in 2^-16 side by side. Rejections, one a row at most,
have a table of their own in the first; the second adds each as 2^32 to the rows, which saves it a
third number a label.

Letters: N rows, g = gamma draft positions, C cells.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calib.squashed_logit import HALF_RANGE, LOGIT_UNIT

__all__ = ["REJECTION", "count_all", "count_observed", "increments"]

REJECTION: Final = 1 << 32  # beside the rows of a cell, fewer than 2^31 in a batch

_HALF = np.float32(HALF_RANGE)
_PER_HALF = np.float32(1.0 / HALF_RANGE)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_UNITS = np.float32(LOGIT_UNIT)  # a power of two, so that the product is exact
_BLOCK = 256  # rows whose cells are computed at once: their places fit the nearest cache


def increments(gamma: int) -> NDArray[np.int64]:
    """[(2g + 1)·g] what :func:`count_all` adds at each position, by n + min(n + 1, l).

    The sum tells the two apart: the last observed position is n or n + 1.
    """
    rows = np.zeros((2 * gamma + 1, gamma), dtype=np.int64)
    for accepted in range(gamma + 1):
        rows[2 * accepted, :accepted] = 1
        if accepted < gamma:
            rows[2 * accepted + 1, : accepted + 1] = 1
            rows[2 * accepted + 1, accepted] += REJECTION
    return rows.reshape(-1)


def count_observed(
    logits: Any,  # [N, g] float32, scaled
    accepted: Any,  # [N] int16 n
    limit: Any,  # [N] int16 last observed position
    sums: Any,  # [g, C, 2] int64: added to
    rejections: Any,  # [g, C] int64: added to
) -> None:
    """Count position by position until a row ends; |z| up to 65,536."""
    cells = sums.shape[1]
    last = np.int32(cells - 1)
    per_unit = np.float32(cells / (2.0 * HALF_RANGE))
    # Unsigned places in flat tables: nothing is asked about indices below 0.
    pairs = sums.reshape(-1)
    rejected = rejections.reshape(-1)
    for row in range(logits.shape[0]):
        end = limit[row]
        place = np.uint64(0)
        start = np.uint64(0)
        for position in range(end):
            logit = logits[row, position]
            squashed = logit / (abs(logit) * _PER_HALF + _ONE)
            scaled = (squashed + _HALF) * per_unit
            # NaN is not above 0: cast to a whole number it could be any place in memory.
            cell = min(np.int32(scaled), last) if scaled > _ZERO else np.int32(0)
            place = start + np.uint64(cell)
            start += np.uint64(cells)
            pairs[place * np.uint64(2)] += 1
            pairs[place * np.uint64(2) + np.uint64(1)] += np.int64(np.rint(logit * _UNITS))
        # A row ends at its first rejection, so one label in it at most is 0.
        rejected[place] += accepted[row] < end


def count_all(
    logits: Any,  # [N, g] float32, scaled, finite, within ±32,768
    code: Any,  # [N] int16 n + min(n + 1, l), n cut at l
    added: Any,  # increments(g)
    width: Any,  # a tuple of g zeros: its type tells the compiler how many steps to unroll
    sums: Any,  # [g, C, 2] int64: added to
) -> None:
    """Count every position, with 0 where nothing was observed.

    The bound on z is that of 2^16·z in 32 bits.
    """
    gamma = len(width)
    rows = logits.shape[0]
    cells = sums.shape[1]
    last = np.float32(cells - 1)
    per_unit = np.float32(cells / (2.0 * HALF_RANGE))
    flat = logits.reshape(-1)
    pairs = sums.reshape(-1)
    cell = np.empty(_BLOCK * gamma, np.int32)
    units = np.empty(_BLOCK * gamma, np.int32)
    for first in range(0, rows, _BLOCK):
        block = flat[first * gamma : min(first + _BLOCK, rows) * gamma]
        for index in range(block.shape[0]):
            logit = block[index]
            squashed = logit / (abs(logit) * _PER_HALF + _ONE)
            cell[index] = np.int32(min((squashed + _HALF) * per_unit, last))
            units[index] = np.int32(np.rint(logit * _UNITS))
        here = np.uint64(0)
        for row in range(first, min(first + _BLOCK, rows)):
            entry = np.uint64(code[row]) * np.uint64(gamma)
            start = np.uint64(0)
            for position in range(gamma):
                place = (start + np.uint64(cell[here])) * np.uint64(2)
                start += np.uint64(cells)
                increment = added[entry + np.uint64(position)]
                pairs[place] += increment
                pairs[place + np.uint64(1)] += np.int64(units[here]) * (increment & np.int64(1))
                here += np.uint64(1)
