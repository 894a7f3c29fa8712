"""A step's tensors on their way to the host: asked for on the engine's thread, read on another.

The engine's buffers are overwritten by its next step. A step's tensors are laid behind each other
as 32-bit words, whatever they hold, and one copy into pinned memory is put on the stream that the
step itself runs on, in order before that: a device gets two launches, and nothing is converted. A
ring of such memory is made once. Its reader calls nothing of CUDA's: a call from a second thread
could break a graph that the engine captures, or open a context on another device. Memory that
waits to be written holds a word that no step has in every cell, so what has been overwritten
everywhere has arrived. Only then is it read, and only what was read is given out again: where no
place is free the step is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["StepCopies", "StepCopy"]

# As a count or half of one it is 2143346349; as a number a NaN that no device makes: theirs are
# 7fffffff and 7fc00000.
_UNWRITTEN = 0x7FC0DEAD
_LOST_SECONDS = 60.0  # a step that takes longer never comes; its memory is not used again


class StepCopy(NamedTuple):
    """One step as it arrived on the host, in memory of its own.

    Attributes:
        note: what the caller gave with it.
        parts: [rows, …] each, as it was asked for; float32 or int64.
    """

    note: Any
    parts: list[Any]


class _Slot:
    """Memory of one step: a part of the ring's, seen as a tensor and as a NumPy array."""

    __slots__ = ("place", "tensor", "words")

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.place = tensor  # as much of it as was last asked for
        self.words = tensor.numpy()
        self.words.fill(_UNWRITTEN)


class StepCopies:
    """The ring. One thread calls :meth:`ask_for`, one other :meth:`take`.

    Args:
        width: most numbers of a row, over all parts.
        pinned: whether the engine's tensors lie on a CUDA device.
        rows: of a batch for which there is room from the start; larger ones make it grow.
        depth: steps that may be under way or unread.

    Attributes:
        left_out: steps that found no free place.
        lost: steps that never came.
    """

    def __init__(self, width: int, *, pinned: bool, rows: int = 64, depth: int = 32) -> None:
        import torch
        from torch._utils import _flatten_dense_tensors

        self._joined: Any = _flatten_dense_tensors  # one call, where flattening each is many
        self._word = torch.int32
        self._dense = torch.contiguous_format
        self._kinds = {  # for NumPy, and how many words
            torch.int32: ("int32", 1),
            torch.int64: ("int64", 2),
            torch.float32: ("float32", 1),
        }
        self._width = 2 * width  # words
        self._pinned = pinned
        self.depth = depth
        self._room = 0  # words of a place in the newest memory
        self._fresh: list[_Slot] = []  # of the newest memory, not yet given out
        self._free: deque[_Slot] = deque()
        self._under_way: deque[tuple[_Slot, int, list[Any], Any, float]] = deque()
        self.left_out = 0
        self.lost = 0
        self._grow(rows * self._width)
        self._free.extend(self._fresh)
        self._fresh = []

    def __len__(self) -> int:
        return len(self._under_way)

    def ask_for(self, rows: int, parts: Sequence[Any], note: Any) -> bool:
        """Put a step's copy on the current stream; False where no place is free.

        Args:
            rows: of the step.
            parts: on the engine's device, each [rows] or [rows, …], at most ``width`` numbers in a
                row together; what lies behind the rows is padding.
            note: comes back with the copy.

        Raises:
            ValueError: parts of another size; nothing was asked for.
        """
        if not self._free:
            self.left_out += 1
            return False
        words, shapes = [], []
        for given in parts:
            part, shape, kind = given, given.shape, given.dtype
            if shape[0] != rows:
                part = given[:rows]
                shape = part.shape
                if shape[0] != rows:
                    raise ValueError(f"{shape[0]} rows of a part in a step of {rows}")
            if kind is not self._word:
                if kind not in self._kinds:
                    part = part.float() if kind.is_floating_point else part.long()
                    kind = part.dtype
                part = part.contiguous()
                if part.ndim and part.stride(-1) != 1:  # of one number a row, or none: any will do
                    part = part.clone(memory_format=self._dense)
                part = part.view(self._word)
            words.append(part)
            shapes.append((kind, shape))
        whole = self._joined(words)
        size = whole.shape[0]
        if size > rows * self._width:
            raise ValueError(f"{size} words in {rows} rows, where {self._width} a row are the most")
        slot = self._slot_for(size)
        # A fault from here on loses the place: a copy into it may be under way.
        if slot.place.shape[0] != size:
            slot.place = slot.tensor[:size]
        slot.place.copy_(whole, non_blocking=True)
        self._under_way.append((slot, size, shapes, note, time.monotonic()))
        return True

    def take(self, most: int) -> list[StepCopy]:
        """The oldest steps that have arrived, in order; their places are free again."""
        found: list[StepCopy] = []
        while self._under_way and len(found) < most:
            slot, size, shapes, note, since = self._under_way[0]
            words = slot.words[:size]
            if (words == _UNWRITTEN).any():
                if time.monotonic() - since < _LOST_SECONDS:
                    break
                self._under_way.popleft()
                self.lost += 1
                continue
            found.append(StepCopy(note, self._parts(words.copy(), shapes)))
            words.fill(_UNWRITTEN)
            self._under_way.popleft()
            self._free.append(slot)
        return found

    def _parts(self, words: Any, shapes: Sequence[tuple[Any, Any]]) -> list[Any]:
        """The step's parts again: numbers as float32, counts as int64."""
        found, at = [], 0
        for kind, shape in shapes:
            name, width = self._kinds[kind]
            end = at + width * shape.numel()
            part = words[at:end].view(name).reshape(shape)
            found.append(part if name == "float32" else part.astype("int64"))
            at = end
        return found

    def _slot_for(self, size: int) -> _Slot:
        """A free place; where it is too small, one of new memory stands in for it."""
        slot = self._free.popleft()
        if len(slot.words) >= size:
            return slot
        if size > self._room or not self._fresh:
            self._grow(size)
        return self._fresh.pop()

    def _grow(self, size: int) -> None:
        import torch

        self._room = max(2 * self._room if size > self._room else self._room, size)
        # Engines run in inference mode; what is made in it could be written only in it.
        with torch.inference_mode(False):
            shape = (self.depth, self._room)
            memory = torch.empty(shape, dtype=torch.int32, pin_memory=self._pinned)
        self._fresh = [_Slot(part) for part in memory]
