"""The loop that counts hard labels into logit sketches, compiled by Numba where it is installed.

It gives the same integers as NumPy's passes in a fifth of the time. Loading Numba costs as much CPU
as counting some eight million rows without it (0.3 to 0.5 s; the first time on a machine, 1 s more
to compile). So a process loads it once it has counted that many: one that stops before has lost
nothing, and one that goes on has lost at most as much as it could have saved by then.

Letters: N rows, g = gamma draft positions, C cells.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from calib.squashed_logit import HALF_RANGE, LOGIT_UNIT

__all__ = ["COLUMNS", "WORTH_LOADING", "HardLabelCounter", "hard_label_counter", "load"]

# ([N, g] float32 scaled logits, [N] int16 accepted, [N] int16 last observed position,
# [g, C, COLUMNS] int64 rows, Σz in 2^-16, rejections: added to)
HardLabelCounter = Callable[[Any, Any, Any, Any], None]

COLUMNS: Final = 3
WORTH_LOADING: Final = 8_000_000  # rows whose count pays for loading Numba

_log = logging.getLogger(__name__)


class _Demand:
    """Rows that this process has counted; a rough sum is enough, so threads need no lock."""

    rows = 0


def hard_label_counter(rows: int) -> HardLabelCounter | None:
    """The compiled loop for so many more rows, where it is loaded or worth loading; else None."""
    _Demand.rows += rows
    loaded = _compiled.cache_info().currsize > 0
    return _compiled() if loaded or _Demand.rows >= WORTH_LOADING else None


def load() -> bool:
    """Compile or read the loop now and use it from here on, whatever the number of rows.

    Returns:
        Whether there is one: False without Numba.
    """
    return _compiled() is not None


@cache
def _compiled() -> HardLabelCounter | None:
    if importlib.util.find_spec("numba") is None:
        return None
    numba = importlib.import_module("numba")
    # One signature: compiled once, and read from the cache by every later process.
    signature = _signature(numba)
    try:
        counter: HardLabelCounter = numba.njit(signature, cache=True, nogil=True)(
            _count_hard_labels
        )
    except RuntimeError as error:  # no folder in which it may keep what it compiled
        _log.info("the counting loop is compiled again in every process: %s", error)
        counter = numba.njit(signature, nogil=True)(_count_hard_labels)
    return counter


def _signature(numba: Any) -> Any:
    """Types of the arguments; columns of records are read-only, and others are taken as such."""

    def read(kind: Any, dimensions: int) -> Any:
        return numba.types.Array(kind, dimensions, "C", readonly=True)

    lengths = read(numba.int16, 1)
    table = numba.types.Array(numba.int64, 3, "C")
    return numba.void(read(numba.float32, 2), lengths, lengths, table)


_HALF = np.float32(HALF_RANGE)
_PER_HALF = np.float32(1.0 / HALF_RANGE)
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_UNITS = np.float32(LOGIT_UNIT)  # a power of two, so that the product is exact


def _count_hard_labels(logits: Any, accepted: Any, limit: Any, table: Any) -> None:
    """Plain loops; :mod:`calib.squashed_logit` has the same arithmetic, operation by operation."""
    cells = table.shape[1]
    last = np.int32(cells - 1)
    per_unit = np.float32(cells / (2.0 * HALF_RANGE))
    # Unsigned places in a flat table: nothing is asked about indices below 0.
    sums = table.reshape(-1)
    columns = np.uint64(table.shape[2])
    stride = np.uint64(cells) * columns
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
            place = start + np.uint64(cell) * columns
            start += stride
            sums[place] += 1
            sums[place + np.uint64(1)] += np.int64(np.rint(logit * _UNITS))
        # A row ends at its first rejection, so one label in it at most is 0.
        sums[place + np.uint64(2)] += accepted[row] < end
