"""Counting hard labels into logit sketches by loops that Numba compiles, where it is installed.

They give the same integers as NumPy's passes in a fifth of the time. Loading Numba costs as much
CPU as counting some eight million rows without it (0.3 to 0.5 s; the first time on a machine, 2 s
more to compile). So a process loads it once it has counted that many: one that stops before has
lost nothing, and one that goes on has lost at most as much as it could have saved by then.

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
from numpy.typing import NDArray

from calib.counting_loops import REJECTION, count_all, count_observed, increments
from calib.squashed_logit import in_range, in_short_range

__all__ = ["WORTH_LOADING", "HardLabelCounter", "hard_label_counter", "load"]

Integers = NDArray[np.int64]
Lengths = NDArray[np.int16]
Loop = Callable[..., None]

WORTH_LOADING: Final = 8_000_000  # rows whose count pays for loading Numba
_SAMPLE = 17  # every so many rows say how much was observed; engines do not take turns by 17
# Measured: 6 + 2.75 ns a label for a row of observed labels, 1.93 ns a position for all of them.
_LABELS_PER_POSITION = 0.7
_LABELS_PER_ROW = 2.2

_log = logging.getLogger(__name__)


class HardLabelCounter:
    """Counts batches of one width into tables of its own.

    Args:
        gamma: draft positions.
        cells: cells a position.
    """

    def __init__(self, gamma: int, cells: int) -> None:
        self._sums = np.zeros((gamma, cells, 2), dtype=np.int64)
        self._rejections = np.zeros((gamma, cells), dtype=np.int64)
        self._increments = increments(gamma)
        self._width = (0,) * gamma

    def count(
        self,
        logits: NDArray[np.float32],  # [N, g] scaled, C order
        accepted: Lengths,  # [N] n
        limit: Lengths,  # [N] min(n + 1, l), the last observed position
    ) -> bool:
        """Add fewer than 2^31 rows in all.

        Returns:
            False where a logit has to be cut or refused, and nothing was added.
        """
        if in_short_range(logits):
            labels = float(limit[::_SAMPLE].mean()) if len(limit) else 0.0  # of a row
            gamma = len(self._width)
            if labels + _LABELS_PER_ROW >= _LABELS_PER_POSITION * gamma:
                code = np.minimum(accepted, limit) + limit
                _all_loop(gamma)(logits, code, self._increments, self._width, self._sums)
                return True
        elif not in_range(logits):
            return False
        _observed_loop()(logits, accepted, limit, self._sums, self._rejections)
        return True

    @property
    def counted(self) -> tuple[Integers, Integers, Integers]:
        """Rows, Σz in 2^-16 and rejections of each cell, [g, C] each."""
        packed = self._sums[..., 0]
        return packed & (REJECTION - 1), self._sums[..., 1], self._rejections + (packed >> 32)


class _Demand:
    """Rows that this process has counted; a rough sum is enough, so threads need no lock."""

    rows = 0


def hard_label_counter(rows: int, gamma: int, cells: int) -> HardLabelCounter | None:
    """A counter for so many more rows, where Numba is loaded or worth loading; else None."""
    _Demand.rows += rows
    loaded = _numba.cache_info().currsize > 0
    wanted = loaded or _Demand.rows >= WORTH_LOADING
    return HardLabelCounter(gamma, cells) if wanted and _numba() is not None else None


def load(gamma: int) -> bool:
    """Use the loops from here on, whatever the number of rows.

    Args:
        gamma: width to compile, or to read from the cache, at once.

    Returns:
        Whether there are any: False without Numba.
    """
    if _numba() is None:
        return False
    _observed_loop()
    _all_loop(gamma)
    return True


@cache
def _numba() -> Any:
    """The module; None where it is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("numba")


@cache
def _observed_loop() -> Loop:
    types = _numba().types
    signature = types.void(
        _read(types.float32, 2),
        _read(types.int16, 1),
        _read(types.int16, 1),
        types.Array(types.int64, 3, "C"),
        types.Array(types.int64, 2, "C"),
    )
    return _compiled(count_observed, signature)


@cache
def _all_loop(gamma: int) -> Loop:
    types = _numba().types
    signature = types.void(
        _read(types.float32, 2),
        _read(types.int16, 1),
        _read(types.int64, 1),
        types.UniTuple(types.int64, gamma),
        types.Array(types.int64, 3, "C"),
    )
    # A division is checked for 0 otherwise, and not done in vector registers.
    return _compiled(count_all, signature, error_model="numpy")


def _read(kind: Any, dimensions: int) -> Any:
    """Type of an argument: columns of records are read-only, and others are taken as such."""
    return _numba().types.Array(kind, dimensions, "C", readonly=True)


def _compiled(loop: Loop, signature: Any, **options: Any) -> Loop:
    """Compiled for one signature: once on a machine, and read from the cache from then on."""
    compiler = _numba().njit
    compiled: Loop
    try:
        compiled = compiler(signature, cache=True, nogil=True, **options)(loop)
    except RuntimeError as error:  # no folder in which it may keep what it compiled
        _log.info("counting loops are compiled again in every process: %s", error)
        compiled = compiler(signature, nogil=True, **options)(loop)
    return compiled
