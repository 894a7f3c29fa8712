"""The bounded queue between an engine's step and the uploader.

Putting rows in costs one short lock and never waits for the network: when the queue is full, rows
are dropped, the oldest or the newest by choice, and counted. The bound is on rows and on bytes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from dspark_calib_client.telemetry_options import TelemetryOptions

__all__ = ["RowQueue"]


class RowQueue:
    """Entries of one row or more, each with its size.

    Args:
        options: bounds, what to drop, and when a batch is due.
    """

    def __init__(self, options: TelemetryOptions) -> None:
        self._most_rows = options.queue_rows
        self._most_bytes = options.queue_bytes
        self._keep_newest = options.drop == "oldest"
        self._batch_rows = options.batch_rows
        self._batch_bytes = options.batch_bytes
        self._batch_seconds = options.batch_seconds
        self.wake = threading.Event()  # set when the queue starts to fill and when a batch is full
        self._clear()

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._entries: deque[tuple[int, int, Any]] = deque()
        self.rows = 0
        self.bytes = 0
        self.dropped = 0
        self.offered = 0
        self._since = 0.0  # monotonic seconds at which the oldest row came, or later

    def offer(self, rows: int, size: int, entry: Any) -> bool:
        """Put in one entry; False when it was dropped. Never waits."""
        with self._lock:
            self.offered += rows
            full = self.rows + rows > self._most_rows or self.bytes + size > self._most_bytes
            if full and (not self._keep_newest or not self._make_room(rows, size)):
                self.dropped += rows
                return False
            before_rows, before_bytes = self.rows, self.bytes
            if not self._entries:
                self._since = time.monotonic()
            self._entries.append((rows, size, entry))
            self.rows = before_rows + rows
            self.bytes = before_bytes + size
            notify = (
                before_rows == 0
                or self.rows >= self._batch_rows > before_rows
                or self.bytes >= self._batch_bytes > before_bytes
            )
        if notify:
            self.wake.set()
        return True

    def take(self, *, at_once: bool) -> list[Any]:
        """The oldest entries up to one batch, if a batch is due; none otherwise.

        Args:
            at_once: whatever there is, due or not.
        """
        with self._lock:
            if not self._entries or not (at_once or self._due_in() <= 0.0):
                return []
            taken: list[Any] = []
            rows = size = 0
            while self._entries:
                next_rows, next_size, entry = self._entries[0]
                fits = rows + next_rows <= self._batch_rows and (
                    size + next_size <= self._batch_bytes
                )
                if taken and not fits:
                    break
                self._entries.popleft()
                taken.append(entry)
                rows += next_rows
                size += next_size
            self.rows -= rows
            self.bytes -= size
            self._since = time.monotonic()
            return taken

    def due_in(self) -> float:
        """Seconds until a batch is due by age; 0 when one is due, the batch age when empty."""
        with self._lock:
            return max(0.0, self._due_in()) if self._entries else self._batch_seconds

    def discard(self) -> int:
        """Drop everything; the number of rows."""
        with self._lock:
            rows = self.rows
            self._entries.clear()
            self.rows = self.bytes = 0
            return rows

    def reset_after_fork(self) -> None:
        """In a child process: empty, because the parent sends what was in it."""
        self._clear()
        self.wake = threading.Event()

    def _due_in(self) -> float:
        if self.rows >= self._batch_rows or self.bytes >= self._batch_bytes:
            return 0.0
        return self._since + self._batch_seconds - time.monotonic()

    def _make_room(self, rows: int, size: int) -> bool:
        """Drop the oldest entries until one of this size fits; False where it never can."""
        if rows > self._most_rows or size > self._most_bytes:
            return False
        while self.rows + rows > self._most_rows or self.bytes + size > self._most_bytes:
            old_rows, old_size, _ = self._entries.popleft()
            self.rows -= old_rows
            self.bytes -= old_size
            self.dropped += old_rows
        return True
