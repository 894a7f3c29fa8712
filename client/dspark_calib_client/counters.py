"""Named counters that several threads raise."""

from __future__ import annotations

import threading

__all__ = ["Counters"]


class Counters:
    """Numbers that only grow; a name that was never raised counts 0."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Raise one counter."""
        with self._lock:
            self._values[name] = self._values.get(name, 0) + amount

    def value(self, name: str) -> int:
        """One counter."""
        return self._values.get(name, 0)

    def snapshot(self) -> dict[str, int]:
        """All of them, as of one instant."""
        with self._lock:
            return dict(self._values)

    def reset_after_fork(self) -> None:
        """In a child process: begin at 0, without a lock that a parent's thread may hold."""
        self._lock = threading.Lock()
        self._values = {}
