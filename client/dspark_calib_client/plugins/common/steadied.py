"""What rank 0 tells the others, calmed: a service that changes its mind all the time is waited out.

Every change of temperatures shifts how much is verified. A service that flaps (two replicas with
different databases, a script gone wrong) would shift it every few steps. After a number of changes
in a minute the numbers of that moment stay until the service has been quiet for a minute.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dspark_calib_client.temperatures import State, Temperatures

__all__ = ["SteadiedClient"]

_LOG = logging.getLogger("dspark_calib_client")


class SteadiedClient:
    """Stands for a client where :class:`dspark_calib_client.RankZeroBroadcaster` asks one.

    Args:
        current: the client's numbers now.
        most_changes: changes of numbers within ``window`` that are passed on.
        window: seconds over which changes are counted, and of quiet that end a hold.
        clock: seconds that never go back.

    Attributes:
        holds: times that a hold began.
    """

    def __init__(
        self,
        current: Callable[[], Temperatures],
        *,
        most_changes: int = 6,
        window: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._current = current
        self._most = most_changes
        self._window = window
        self._clock = clock
        self._changes: deque[float] = deque()
        self._seen: Any = None  # numbers that the client last had
        self._held: Temperatures | None = None
        self.holds = 0

    @property
    def holding(self) -> bool:
        """Whether news is being held back."""
        return self._held is not None

    def current(self) -> Temperatures:
        """The client's numbers, or those held."""
        now = self._current()
        if now.state is State.FALLBACK:  # such as another model's key: nothing old may stay
            self._held = self._seen = None
            return now
        instant = self._clock()
        numbers = (now.values, now.slopes, now.intercepts)
        if self._seen is not None and numbers != self._seen[0]:
            self._changes.append(instant)
        while self._changes and instant - self._changes[0] >= self._window:
            self._changes.popleft()
        if self._held is None and len(self._changes) > self._most:
            self._held = self._seen[1]
            self.holds += 1
            _LOG.error(
                "the service changed temperatures %d times in %g s: revision %d stays until it "
                "has been quiet for that long",
                *(len(self._changes), self._window, self._seen[1].revision),
            )
        self._seen = (numbers, now)
        if self._held is not None and not self._changes:
            self._held = None
            _LOG.warning("the service is quiet again: revision %d", now.revision)
        return now if self._held is None else self._held
