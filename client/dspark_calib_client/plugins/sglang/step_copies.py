"""A step's tensors on their way to the host: asked for now, read at a later step, never waited for.

The engine's buffers are overwritten by its next step. Copies into pinned memory are put on the
stream that the step itself runs on, in order before that, with an event behind them. At the next
step the event is only asked whether it has happened. Where too many copies are under way the step
is left out and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["INTEGERS", "StepCopies", "StepCopy"]

# Columns after the gamma + 1 verified ids (anchor and drafts) of a packed row.
INTEGERS = ("correct", "trimmed", "bonus", "context", "verify_len")
_FEWEST_ROWS = 64


class _Slot:
    """Pinned memory for one step, grown when a batch is larger than any before."""

    def __init__(self, gamma: int, *, on_device: bool) -> None:
        self._gamma = gamma
        self._on_device = on_device
        self._rows = 0
        self.logits: Any = None  # [rows, gamma] float32
        self.integers: Any = None  # [rows, gamma + 1 + len(INTEGERS)] int64
        self.event: Any = None

    def make_room(self, rows: int) -> None:
        if rows <= self._rows:
            return
        import torch

        self._rows = max(_FEWEST_ROWS, 2 * self._rows, rows)
        width = self._gamma + 1 + len(INTEGERS)
        pinned = self._on_device
        # Engines run in inference mode; what is made in it could be written only in it.
        with torch.inference_mode(False):
            self.logits = torch.empty(
                (self._rows, self._gamma), dtype=torch.float32, pin_memory=pinned
            )
            self.integers = torch.empty((self._rows, width), dtype=torch.int64, pin_memory=pinned)
        if self._on_device and self.event is None:
            self.event = torch.cuda.Event()


@dataclass(frozen=True)
class StepCopy:
    """One step as it arrived on the host.

    Attributes:
        note: what the caller gave with it.
        logits: [rows, gamma] float32; the memory is used again after the next step.
        integers: [rows, gamma + 1 + 5] int64: ids of anchor and drafts, then :data:`INTEGERS`.
    """

    note: Any
    logits: Any
    integers: Any


class StepCopies:
    """A ring of such copies.

    Args:
        gamma: draft positions.
        on_device: whether the engine's tensors lie on a CUDA device.
        depth: steps that may be under way.

    Attributes:
        left_out: steps that found no free place.
    """

    def __init__(self, gamma: int, *, on_device: bool, depth: int = 4) -> None:
        self._gamma = gamma
        self._free = deque(_Slot(gamma, on_device=on_device) for _ in range(depth))
        self._under_way: deque[tuple[_Slot, int, Any]] = deque()
        self._read: list[_Slot] = []  # handed out by the last call of arrived()
        self.left_out = 0

    def ask_for(
        self,
        confidence_raw: Any,  # [rows, gamma]
        verify_ids: Any,  # [rows, gamma + 1]
        integers: Sequence[Any],  # five of [rows], in the order of INTEGERS
        note: Any,
    ) -> bool:
        """Put the step's copies on the current stream; False where no place is free."""
        if not self._free:
            self.left_out += 1
            return False
        import torch

        slot = self._free.popleft()
        try:
            rows = int(confidence_raw.shape[0])
            slot.make_room(rows)
            packed = torch.cat([verify_ids, *(part.view(-1, 1) for part in integers)], dim=1)
            slot.logits[:rows].copy_(confidence_raw, non_blocking=True)
            slot.integers[:rows].copy_(packed, non_blocking=True)
            if slot.event is not None:
                slot.event.record()
        except Exception:
            self._free.append(slot)
            raise
        self._under_way.append((slot, rows, note))
        return True

    def arrived(self) -> list[StepCopy]:
        """Steps that have come in since the last call, in order; its memory is used again then."""
        self._free.extend(self._read)
        self._read = []
        found = []
        while self._under_way:
            slot, rows, note = self._under_way[0]
            if slot.event is not None and not slot.event.query():
                break
            self._under_way.popleft()
            self._read.append(slot)
            found.append(StepCopy(note, slot.logits[:rows].numpy(), slot.integers[:rows].numpy()))
        return found
