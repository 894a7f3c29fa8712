"""Callbacks on change, which may do what they like but never reach the poller."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dspark_calib_client.counters import Counters
from dspark_calib_client.temperatures import Temperatures

__all__ = ["Listener", "Listeners"]

Listener = Callable[[Temperatures], object]

_LOG = logging.getLogger("dspark_calib_client")


class Listeners:
    """Calls each listener once for every change of numbers, exploration, state or source."""

    def __init__(self, counters: Counters, first: Temperatures) -> None:
        self._counters = counters
        self._listeners: tuple[Listener, ...] = ()
        self._last = _what_matters(first)

    def add(self, listener: Listener) -> None:
        """Call ``listener`` from now on, in the poller's thread."""
        self._listeners = (*self._listeners, listener)

    def notice(self, temperatures: Temperatures) -> bool:
        """Tell the listeners if something changed since the last call; whether it did."""
        now = _what_matters(temperatures)
        before, self._last = self._last, now
        if now == before:
            return False
        _LOG.info(
            "temperatures: %s from %s, publication %d, revision %d",
            temperatures.state,
            temperatures.source,
            temperatures.publication,
            temperatures.revision,
        )
        for listener in self._listeners:
            try:
                listener(temperatures)
            except Exception:  # noqa: BLE001  (a listener's fault must not stop the poller)
                self._counters.add("listener_errors")
                _LOG.exception("a listener failed")
        return True


def _what_matters(temperatures: Temperatures) -> tuple[object, ...]:
    """Everything but the age."""
    return (
        temperatures.values,
        temperatures.slopes,
        temperatures.intercepts,
        temperatures.exploration,
        temperatures.publication,
        temperatures.revision,
        temperatures.state,
        temperatures.source,
    )
