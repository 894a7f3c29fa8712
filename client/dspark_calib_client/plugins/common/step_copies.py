"""A step's tensors on their way to the host: asked for on the engine's thread, read on another.

The engine's buffers are overwritten by its next step. Copies into pinned memory are put on the
stream that the step itself runs on, in order before that. A ring of such memory is made once. Its
reader calls nothing of CUDA's: a call from a second thread could break a graph that the engine
captures, or open a context on another device. Memory that waits to be written holds a number that
no step has in every cell, so what has been overwritten everywhere has arrived. Only then is it
read, and only what was read is given out again: where no place is free the step is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["StepCopies", "StepCopy"]

_UNWRITTEN = -(2**63)  # no token, length or count
_UNWRITTEN_BITS = 0x7FC0DEAD  # a NaN that no device makes: theirs are 7fffffff and 7fc00000
_LOST_SECONDS = 60.0  # a step that takes longer never comes; its memory is not used again


class StepCopy(NamedTuple):
    """One step as it arrived on the host, in memory of its own.

    Attributes:
        note: what the caller gave with it.
        logits: [rows, gamma] float32.
        integers: int64, the parts one behind the other, each flat.
    """

    note: Any
    logits: Any
    integers: Any


class _Slot:
    """Memory of one step: a part of the ring's, seen as tensors and as NumPy arrays."""

    __slots__ = ("bits", "cells", "integers", "logits", "numbers")

    def __init__(self, logits: Any, integers: Any) -> None:
        self.logits = logits  # [rows * gamma]
        self.integers = integers  # [rows * width]
        self.cells = logits.numpy()
        self.bits = self.cells.view("uint32")
        self.numbers = integers.numpy()
        self.numbers.fill(_UNWRITTEN)
        self.bits.fill(_UNWRITTEN_BITS)


class StepCopies:
    """The ring. One thread calls :meth:`ask_for`, one other :meth:`take`.

    Args:
        gamma: draft positions.
        width: most integers of a row, over all parts.
        pinned: whether the engine's tensors lie on a CUDA device.
        rows: of a batch for which there is room from the start; larger ones make it grow.
        depth: steps that may be under way or unread.

    Attributes:
        left_out: steps that found no free place.
        lost: steps that never came.
    """

    def __init__(
        self, gamma: int, width: int, *, pinned: bool, rows: int = 64, depth: int = 32
    ) -> None:
        import torch

        self._cat, self._wide = torch.cat, torch.int64
        self._gamma = gamma
        self._width = width
        self._pinned = pinned
        self.depth = depth
        self._rows = 0
        self._fresh: list[_Slot] = []  # of the newest memory, not yet given out
        self._free: deque[_Slot] = deque()
        self._under_way: deque[tuple[_Slot, int, int, Any, float]] = deque()
        self.left_out = 0
        self.lost = 0
        self._grow(rows)
        self._free.extend(self._fresh)
        self._fresh = []

    def __len__(self) -> int:
        return len(self._under_way)

    def ask_for(self, logits: Any, parts: Sequence[Any], note: Any) -> bool:
        """Put a step's copies on the current stream; False where no place is free.

        Args:
            logits: [rows, gamma] on the engine's device.
            parts: integers, each [rows] or [rows, …], at most ``width`` in a row together.
            note: comes back with the copy.

        Raises:
            ValueError: parts of another size; nothing was asked for.
        """
        if not self._free:
            self.left_out += 1
            return False
        rows = int(logits.shape[0])
        wide = self._wide
        flat = self._cat([_flat(part, wide) for part in parts])
        size = int(flat.shape[0])
        if size % rows or size > rows * self._width or int(logits.shape[1]) != self._gamma:
            raise ValueError(f"{size} integers and {logits.shape[1]} logits a row in {rows} rows")
        slot = self._slot_for(rows)
        # A fault from here on loses the place: copies into it may be under way.
        slot.logits[: rows * self._gamma].copy_(logits.reshape(-1), non_blocking=True)
        slot.integers[:size].copy_(flat, non_blocking=True)
        self._under_way.append((slot, rows, size, note, time.monotonic()))
        return True

    def take(self, most: int) -> list[StepCopy]:
        """The oldest steps that have arrived, in order; their places are free again."""
        found: list[StepCopy] = []
        while self._under_way and len(found) < most:
            slot, rows, size, note, since = self._under_way[0]
            numbers, bits = slot.numbers[:size], slot.bits[: rows * self._gamma]
            if (numbers == _UNWRITTEN).any() or (bits == _UNWRITTEN_BITS).any():
                if time.monotonic() - since < _LOST_SECONDS:
                    break
                self._under_way.popleft()
                self.lost += 1
                continue
            logits = slot.cells[: rows * self._gamma].reshape(rows, -1)
            found.append(StepCopy(note, logits.copy(), numbers.copy()))
            numbers.fill(_UNWRITTEN)
            bits.fill(_UNWRITTEN_BITS)
            self._under_way.popleft()
            self._free.append(slot)
        return found

    def _slot_for(self, rows: int) -> _Slot:
        """A free place; where it is too small, one of new memory stands in for it."""
        slot = self._free.popleft()
        if len(slot.bits) >= rows * self._gamma:
            return slot
        if rows > self._rows or not self._fresh:
            self._grow(rows)
        return self._fresh.pop()

    def _grow(self, rows: int) -> None:
        import torch

        self._rows = max(2 * self._rows if rows > self._rows else self._rows, rows)
        sizes = [(self.depth, self._rows * cells) for cells in (self._gamma, self._width)]
        # Engines run in inference mode; what is made in it could be written only in it.
        with torch.inference_mode(False):
            logits = torch.empty(sizes[0], dtype=torch.float32, pin_memory=self._pinned)
            integers = torch.empty(sizes[1], dtype=torch.int64, pin_memory=self._pinned)
        self._fresh = [_Slot(*part) for part in zip(logits, integers)]


def _flat(part: Any, wide: Any) -> Any:
    """As one row of int64. Left to ``cat``, parts of several kinds cost it ten times its time."""
    part = part if part.dtype is wide else part.long()
    return part if part.ndim == 1 else part.reshape(-1)
