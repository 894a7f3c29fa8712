"""Time as the store sees it: seconds since the epoch, injected, and never going back for leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Clock", "SteadyClock", "system_clock"]

Clock = Callable[[], float]
"""Seconds since the epoch (UTC)."""


def system_clock() -> float:
    """Seconds since the epoch by the machine's clock."""
    return time.time()


class SteadyClock:
    """A wall clock that goes on when the machine's clock is set back.

    SQLite has no clock of its own, so leases run on the machine's. Set back by an hour, it would
    revive leases that ran out and stretch those that run; standing still for that hour instead
    would keep a dead owner's lease alive. This one keeps walking at the pace of ``monotonic`` and
    falls in with the wall clock again once that has caught up.

    Args:
        clock: the wall clock.
        monotonic: seconds that only grow, from any origin.
    """

    def __init__(self, clock: Clock, monotonic: Clock = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._reading = clock()
        self._read_at = monotonic()

    def wall(self) -> float:
        """The wall clock as it is."""
        return self._clock()

    def __call__(self, floor: float = 0.0) -> float:
        """Seconds since the epoch: no less than ``floor`` and than any reading before.

        Args:
            floor: the latest time that other processes have seen.
        """
        with self._lock:
            read_at = self._monotonic()
            walked = self._reading + max(0.0, read_at - self._read_at)
            self._reading = max(self._clock(), walked, floor)
            self._read_at = read_at
            return self._reading
