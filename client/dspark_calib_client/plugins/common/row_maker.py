"""The thread that makes rows of steps, so that the engine's own does not.

It sleeps while nothing is under way, lets a few steps gather, and makes their rows together: that
costs the interpreter, which both threads need, a fraction of one step at a time. The last step
before an engine falls idle is made as soon as it has arrived. It is a thread of its own, and not
the uploader's, because a slow upload must not hold up the ring of copies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspark_calib_client.plugins.common.step_copies import StepCopies, StepCopy

__all__ = ["MOST_FAULTS", "RowMaker"]

MOST_FAULTS = 100  # in a row, after which telemetry ends
_LOG = logging.getLogger("dspark_calib_client")
_LINGER = 0.1  # seconds for which a step waits for company
_LOOK = 0.002  # seconds between two looks at copies that are under way
_TOGETHER = 8  # steps made at once
_BREATH = 0.0001  # seconds after each, for a thread of the engine that waits for the interpreter

Made = Callable[[Sequence[StepCopy]], "tuple[Mapping[str, Any], int]"]


class RowMaker:
    """Runs from the first step to :meth:`stop`.

    Args:
        copies: where steps arrive.
        make: columns of the row contract of some steps, and how many rows were left out because
            their request had ended.
        hand_over: takes columns; how many rows will be sent.

    Attributes:
        rows: handed over.
        rows_after_stop: left out.
        faults: steps of which no rows could be made.
        ended: whether telemetry ended because of faults.
    """

    def __init__(
        self, copies: StepCopies, make: Made, hand_over: Callable[[Mapping[str, Any]], int]
    ) -> None:
        self._copies = copies
        self._make = make
        self._hand_over = hand_over
        self._wake = threading.Event()
        self._over = threading.Event()
        self._ends = 0.0  # monotonic seconds; holds once it is over
        self._thread = threading.Thread(target=self._run, name="dspark-calib-rows", daemon=True)
        self._faults_in_a_row = 0
        self.rows = 0
        self.rows_after_stop = 0
        self.faults = 0
        self.ended = False

    def start(self) -> None:
        """Begin to wait for steps."""
        self._thread.start()

    def nudge(self) -> None:
        """A step was asked for; called on the engine's thread after each."""
        waiting = len(self._copies)
        if waiting <= 1 or waiting == self._copies.depth // 2:
            self._wake.set()

    def stop(self, seconds: float) -> bool:
        """Make rows of what is under way, then end; whether it ended within the time."""
        self._ends = time.monotonic() + 0.8 * seconds  # the rest is for ending
        self._over.set()
        self._wake.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.ended:
            self._wake.clear()
            over = self._over.is_set()
            if not len(self._copies):
                if over:
                    return
                self._wake.wait()
                continue
            if not over and len(self._copies) < self._copies.depth // 2:
                self._wake.wait(_LINGER)
            while self._some():
                time.sleep(_BREATH)
            if len(self._copies):
                if over and time.monotonic() >= self._ends:
                    return
                time.sleep(_LOOK)  # the device has not come to it yet

    def _some(self) -> bool:
        """Make rows of a few steps; whether there were any."""
        steps = self._copies.take(_TOGETHER)
        if not steps:
            return False
        if not self._made(steps):
            for step in steps if len(steps) > 1 else ():  # the others are none the worse for it
                self._made([step])
        return True

    def _made(self, steps: Sequence[StepCopy]) -> bool:
        try:
            columns, past = self._make(steps)
            self.rows_after_stop += past
            if len(columns["verified"]):
                self.rows += self._hand_over(columns)
            self._faults_in_a_row = 0
            return True
        except Exception:  # noqa: BLE001  (the next steps must go)
            if len(steps) > 1:
                return False
            self.faults += 1
            self._faults_in_a_row += 1
            if self.faults & (self.faults - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
                _LOG.exception("rows could not be made of a step: %d", self.faults)
            if self._faults_in_a_row >= MOST_FAULTS:
                self.ended = True
                _LOG.error("telemetry ends: %d faults in a row", MOST_FAULTS)
            return False
