"""How many bytes of telemetry wait in memory, and the line beyond which no more are taken.

A batch counts from the first byte that arrives until it is stored: as sent, then decompressed,
then as the payload that waits for the writer. Only bytes that are here count, not what a header
promises: a sender that announces much and sends nothing keeps nobody else out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from api.problems import ProblemError

__all__ = ["PendingBytes", "QueueFullError", "Reservation"]


class QueueFullError(ProblemError):
    """429: more waits to be stored than memory may hold."""

    def __init__(self, retry_seconds: int = 1) -> None:
        super().__init__(
            "too-many-requests",
            "More telemetry waits to be stored than memory may hold.",
            headers={"Retry-After": str(retry_seconds)},
        )


class PendingBytes:
    """The bytes that all batches of this process hold; safe to use from several threads.

    Args:
        limit: most bytes.
        retry_seconds: what to tell a sender that is turned away.
    """

    def __init__(self, limit: int, retry_seconds: Callable[[], int] = lambda: 1) -> None:
        self._limit = limit
        self._retry_seconds = retry_seconds
        self._used = 0
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Most bytes."""
        return self._limit

    @property
    def used(self) -> int:
        """Bytes held right now."""
        return self._used

    @property
    def taken(self) -> int:
        """All bytes that were ever held."""
        return self._taken

    def reserve(self) -> Reservation:
        """An empty reservation for one batch."""
        return Reservation(self)

    def take(self, count: int) -> None:
        """Add bytes.

        Raises:
            QueueFullError: they would go beyond the limit; none are added.
        """
        with self._lock:
            if self._used + count > self._limit:
                raise QueueFullError(self._retry_seconds())
            self._used += count
            self._taken += count

    def give(self, count: int) -> None:
        """Take bytes away."""
        with self._lock:
            self._used -= count


class Reservation:
    """The bytes of one batch; released at the end of a ``with`` block, unless given on."""

    def __init__(self, pending: PendingBytes) -> None:
        self._pending = pending
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes reserved."""
        return self._size

    def grow(self, count: int) -> None:
        """Reserve ``count`` more bytes.

        Raises:
            QueueFullError: there is no room now.
            ProblemError: 413, there will never be: the batch alone is larger than the limit.
        """
        limit = self._pending.limit
        if self._size + count > limit:
            detail = f"A batch may take at most {limit} bytes of memory, as sent and decompressed."
            raise ProblemError("content-too-large", detail, limit_bytes=limit)
        self._pending.take(count)
        self._size += count

    def shrink(self, size: int) -> None:
        """Give back what is reserved beyond ``size``."""
        surplus = self._size - size
        if surplus > 0:
            self._size = size
            self._pending.give(surplus)

    def release(self) -> None:
        """Give back everything."""
        self.shrink(0)

    def handed_over(self) -> Reservation:
        """The same bytes in a reservation of their own, which this one no longer releases."""
        successor = Reservation(self._pending)
        successor._size, self._size = self._size, 0
        return successor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
