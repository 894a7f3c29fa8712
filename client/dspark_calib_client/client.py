"""The client that an engine holds: one object, two daemon threads, no waiting."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspark_calib_client.configuration import Configuration, checked_baked_in, checked_key
from dspark_calib_client.counters import Counters
from dspark_calib_client.errors import ClientConfigurationError
from dspark_calib_client.forking import reset_in_children
from dspark_calib_client.knowledge import Knowledge
from dspark_calib_client.last_known_good import LastKnownGoodFile
from dspark_calib_client.listeners import Listener, Listeners
from dspark_calib_client.metrics import client_metrics
from dspark_calib_client.poller import Reports
from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.session import Session, Shared
from dspark_calib_client.single_rows import Applied
from dspark_calib_client.states import View, view_of
from dspark_calib_client.telemetry import Telemetry
from dspark_calib_client.telemetry_options import TelemetryOptions
from dspark_calib_client.temperatures import Temperatures
from dspark_calib_client.version import VERSION

__all__ = ["CalibrationClient"]

_FILE_SECONDS = 1.0  # longest time that start() waits for the last-known-good file
_NO_KEY = "0" * 64  # a digest that no key has
_FORMS = ("temperatures", "affine", "identity", None)
_LOG = logging.getLogger("dspark_calib_client")


class CalibrationClient:
    """Polls the temperatures of one drafter, and sends what the engine observed.

    Only the constructor raises. Every other method returns within a stated time, whatever the
    service, the network or the disk does, and whatever it is given.

    Args:
        base_url: address of the service, such as ``http://calibration:8765``.
        drafter: name under which the drafter is registered.
        gamma: draft positions the engine runs; stated, never inferred.
        key: the calibration key's fields, or their digest. Without it the service cannot say that
            it calibrates another model.
        token: bearer token, or a function that returns the current one (called in the background).
        engine_id: name of this engine, unique in the fleet and stable over restarts.
        state_file: where the last-known-good numbers are kept; None for nowhere.
        baked_in: temperatures to use before the service was ever reached; None for identity.
        interval: seconds between polls.
        wait: whole seconds, at most 60, for which the service may hold a poll until there is news.
        timeout: seconds for one exchange beyond the wait.
        stale_after: seconds without confirmation before numbers count as stale; None for
            three polls and a time-out.
        start_delay: seconds before the first poll; None for an offset in [0, interval) that
            depends on ``engine_id`` alone.
        max_backoff: longest delay between attempts after failures.
        segment: tags of the traffic to ask for, such as ``{"domain": "code"}``.
        anchor_included: whether this engine's rows have gamma + 1 slots, slot 0 being the anchor,
            which its lengths count; None takes it from the key's fields, else False.
        telemetry: how rows are sampled, queued and sent.
        verify: as httpx: whether and how to check certificates.
        proxy: address of a proxy, if the service lies behind one; those that the environment names
            are not used.
        wall_clock: seconds since the epoch.
        monotonic: seconds that never go back.

    Raises:
        ClientConfigurationError: naming the argument, its value and the remedy.
    """

    def __init__(
        self,
        base_url: str,
        drafter: str,
        gamma: int,
        key: str | Mapping[str, Any] | None = None,
        *,
        token: str | Callable[[], str | None] | None = None,
        engine_id: str,
        state_file: str | os.PathLike[str] | None = None,
        baked_in: Sequence[float] | Mapping[str, Any] | None = None,
        interval: float = 30.0,
        wait: int = 30,
        timeout: float = 10.0,
        stale_after: float | None = None,
        start_delay: float | None = None,
        max_backoff: float = 120.0,
        segment: Mapping[str, str] | None = None,
        anchor_included: bool | None = None,
        telemetry: TelemetryOptions | None = None,
        verify: Any = True,
        proxy: str | None = None,
        wall_clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._configuration = Configuration.checked(
            base_url=base_url,
            drafter=drafter,
            gamma=gamma,
            key=key,
            anchor_included=anchor_included,
            engine_id=engine_id,
            token=token,
            state_file=state_file,
            interval=interval,
            wait=wait,
            timeout=timeout,
            stale_after=stale_after,
            start_delay=start_delay,
            max_backoff=max_backoff,
            segment=segment,
            verify=verify,
            proxy=proxy,
        )
        self._options = TelemetryOptions() if telemetry is None else telemetry
        if not isinstance(self._options, TelemetryOptions):
            raise ClientConfigurationError("telemetry", telemetry, "give TelemetryOptions")
        tags = self._configuration.segment
        self._counters = Counters()
        self._knowledge = Knowledge(
            self._configuration.expected(checked_key(key)),
            checked_baked_in(baked_in, gamma),
            one_segment=bool(tags),
        )
        self._queue = RowQueue(self._options)
        path = self._configuration.state_file
        self._shared = Shared(
            knowledge=self._knowledge,
            file=None if path is None else LastKnownGoodFile(path, tags),
            queue=self._queue,
            counters=self._counters,
            wall_clock=wall_clock,
            monotonic=monotonic,
        )
        self._rows = Telemetry(
            self._configuration.slots,
            self._options,
            self._queue,
            self._counters,
            refuses=lambda: self._knowledge.held.mismatch,
            wall_clock=wall_clock,
        )
        self._monotonic = monotonic
        self._session: Session | None = None
        self._starting = threading.Lock()
        self._resume = False  # in a child process: whether the parent's client was running
        self._key_is_known = True
        self._cached = self._view()
        self._listeners = Listeners(self._counters, self._cached.temperatures)
        reset_in_children(self)

    def start(self) -> bool:
        """Start polling and sending; whether both threads run. Takes at most a second.

        That second is for the last-known-good file: its numbers are in use when this returns,
        unless its disk hangs. The service is not waited for.
        """
        return self._start(_FILE_SECONDS)

    def stop(self, timeout: float = 5.0) -> bool:
        """Send what is waiting and end both threads, within ``timeout`` seconds.

        Returns:
            Whether both threads ended and every row that was waiting was delivered or refused. What
            was not is counted in ``rows_abandoned``.
        """
        self._resume = False
        session, self._session = self._session, None
        if session is None:
            return True
        before = self._counters.value("rows_abandoned")
        ended = session.stop(_bounded(timeout))
        return ended and self._counters.value("rows_abandoned") == before

    def __enter__(self) -> CalibrationClient:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def current(self) -> Temperatures:
        """The numbers to apply now; never waits. ``age`` may lag by a second."""
        view = self._cached
        if view.held is self._knowledge.held and self._monotonic() < view.good_until:
            return view.temperatures
        return self._refreshed().temperatures

    def on_change(self, listener: Listener) -> None:
        """Call ``listener(temperatures)`` on every change of numbers, state or source.

        It runs in the poller's thread, between polls: what it raises is counted, and while it runs
        nothing is polled.
        """
        self._listeners.add(listener)

    def poll_now(self) -> None:
        """Ask at once instead of at the next instant; a poll that is held is asked anew."""
        session = self._session
        if session is not None:
            session.poller.interrupt()

    def change_key(
        self,
        key: str | Mapping[str, Any] | None,
        *,
        baked_in: Sequence[float] | Mapping[str, Any] | None = None,
    ) -> bool:
        """The engine runs another model now, such as after its weights were reloaded.

        The numbers in use are given up at once for ``baked_in`` or identity, rows of the old model
        that were not sent are discarded, and the service is asked anew.

        Returns:
            Whether key and numbers can be used. If not, the client stays at identity and sends
            nothing until it is given a key that can.
        """
        self._key_is_known = False
        try:
            digest = checked_key(key)
            bundle = checked_baked_in(baked_in, self._configuration.gamma)
            self._key_is_known = True
        except ClientConfigurationError as error:
            self._counters.add("key_changes_refused")
            _LOG.error("the new key cannot be used: %s", error)
            digest, bundle = _NO_KEY, None
        self._counters.add("key_changes")
        self._rows.applied = Applied()
        self._knowledge.change_key(digest, bundle)
        self._discard_rows()
        self.poll_now()
        return self._key_is_known

    def accept_older_publications(self) -> None:
        """Let the next answer carry a smaller publication, after the service was restored."""
        self._knowledge.forget_publications()
        self.poll_now()

    def report_applied(self, temperatures: Temperatures, form: str | None = None) -> None:
        """Say what the engine runs with now: polls report it, and rows carry its revision.

        Args:
            temperatures: what was applied.
            form: ``temperatures``, ``affine`` or ``identity``; None works it out for temperatures.
        """
        given: Any = temperatures
        if not isinstance(given, Temperatures) or form not in _FORMS:
            self._counters.add("calls_failed")
            return
        word = form or ("identity" if temperatures.revision == 0 else "temperatures")
        self._rows.applied = Applied(temperatures.publication, temperatures.revision, word)

    def observe(
        self,
        confidence_logits: Any,  # [gamma] raw, on the host; [gamma + 1] with an anchor
        verified: int,
        accepted: int,
        *,
        request: str | None = None,
        step: int | None = None,
        **columns: Any,
    ) -> bool:
        """Hand over one row of telemetry; microseconds, never waits.

        Args:
            confidence_logits: raw logits of the block, a list, tuple, array or CPU tensor; copied.
            verified: draft positions the target checked; the anchor is not counted.
            accepted: draft positions accepted; neither bonus nor anchor is counted.
            request: its id, hashed where it names a person. Rows are sampled by it.
            step: decode step of the engine; with ``request`` it tells doubles apart.
            **columns: further columns of the row contract. ``engine``, ``timestamp``, ``revision``
                and ``applied_form`` are filled in.

        Returns:
            Whether the row was queued.
        """
        try:
            if self._resume:
                self._start(0.0)
            return self._rows.observe(confidence_logits, verified, accepted, request, step, columns)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._counters.add("calls_failed")
            return False

    def record_rows(self, columns: Mapping[str, Any]) -> int:
        """Hand over the rows of a whole step as columns; cheaper than one by one.

        Args:
            columns: lists, NumPy arrays or CPU tensors of equal length by column name; copied.

        Returns:
            The number of rows that were queued.
        """
        try:
            if self._resume:
                self._start(0.0)
            return self._rows.record_rows(columns)
        except Exception:  # noqa: BLE001  (called from the engine's step)
            self._counters.add("calls_failed")
            return 0

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, and what holds now; plain values by name."""
        session = self._session
        return client_metrics(
            self._counters,
            self._queue,
            self.current(),
            key_mismatch=self._knowledge.held.mismatch,
            running=session is not None and session.is_alive(),
            in_flight=0 if session is None else session.uploader.in_flight,
        )

    def reset_after_fork(self) -> None:
        """In a child process: no threads, connections or rows; starts again when first used.

        Called by the interpreter, not by users.
        """
        session, self._session = self._session, None
        self._resume = session is not None
        if session is not None:
            session.leave_to_parent()
        self._knowledge.reset_lock_after_fork()
        self._counters.reset_after_fork()
        self._starting = threading.Lock()
        self._queue.reset_after_fork()
        # Good for no time at all, so that the next current() looks anew, and starts.
        self._cached = View(None, self._cached.temperatures, -math.inf, math.inf)

    def _poll_parameters(self) -> Mapping[str, str]:
        applied = self._rows.applied
        return {
            "client": VERSION,
            "applied_publication": str(applied.publication),
            "applied_revision": str(applied.revision),
            "state": str(self.current().state),
        }

    def _notice(self) -> float:
        """Tell listeners what changed; seconds until the state changes by itself."""
        view = self._refreshed()
        self._listeners.notice(view.temperatures)
        return max(0.0, view.state_ends - self._monotonic())

    def _refreshed(self) -> View:
        if self._resume:
            self._start(0.0)
        view = self._view()
        self._cached = view
        return view

    def _view(self) -> View:
        return view_of(
            self._knowledge.held,
            self._configuration.gamma,
            monotonic=self._shared.monotonic(),
            wall=self._shared.wall_clock(),
            stale_after=self._configuration.stale_after,
        )

    def _start(self, file_seconds: float) -> bool:
        if not self._starting.acquire(blocking=False):
            return False  # another thread is at it
        try:
            self._resume = False
            if self._session is not None and self._session.is_alive():
                return True
            self._drop_session()
            self._session = self._new_session()
            self._session.start(file_seconds)
            return True
        except Exception:  # noqa: BLE001  (an engine that cannot have threads runs on regardless)
            self._counters.add("start_errors")
            _LOG.exception("the client could not start")
            self._drop_session()
            return False
        finally:
            self._starting.release()

    def _drop_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.stop(0.0)

    def _discard_rows(self) -> None:
        session = self._session
        if session is None:
            self._counters.add("rows_discarded", self._queue.discard())
        else:
            session.uploader.discard("rows_discarded")

    def _new_session(self) -> Session:
        return Session(
            self._configuration,
            self._options,
            self._shared,
            Reports(self._poll_parameters, self._notice, self._discard_rows),
            upload_parameters=self._upload_parameters,
            may_send=lambda: self._key_is_known and self._knowledge.key_confirmed,
        )

    def _upload_parameters(self) -> dict[str, str]:
        parameters = {"engine": self._configuration.engine, "client": VERSION}
        key = self._knowledge.key
        return parameters if key is None else {**parameters, "key": key}


def _bounded(seconds: Any) -> float:
    """A time-out between 0 and a day; 0 for what is no number."""
    number = isinstance(seconds, (int, float)) and seconds == seconds  # NaN differs from itself
    return float(min(max(seconds, 0), 86_400)) if number else 0.0
