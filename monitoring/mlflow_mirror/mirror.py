"""The mirror at work: takes entries from the outbox and tells them, one after the other.

Nobody waits for it. While the server is away it asks again with growing pauses, and the counter
``deferred`` says how much has had to wait. It needs no end in order: what it was doing when its
process ended is done again, with the same result.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from sqlalchemy import Connection

from calib.errors import CalibrationError
from monitoring.mlflow_mirror.errors import TrackingAwayError
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError, NotFoundError, StoreError
from monitoring.store.events import open_event, resolve
from monitoring.store.tracking_outbox import (
    LEASE_SECONDS,
    Entry,
    TrackingTotals,
    anything_waiting,
    claim_next,
    deliver,
    give_back,
    give_up,
    put_off,
)

__all__ = ["AWAY_KEY", "Mirror", "MirrorSettings", "Teller"]

_log = logging.getLogger(__name__)

AWAY_KEY: Final = "tracking_unreachable"
"""De-duplication key of the event that says that the server does not answer."""

_FAULTS_ALLOWED: Final = 5  # an unexpected error may pass; one that does not is ours to mend

Step = Literal["idle", "delivered", "away", "faulty"]


class Teller(Protocol):
    """Tells one entry; :class:`monitoring.mlflow_mirror.delivery.Delivery` is the real one."""

    def deliver(self, entry: Entry) -> None:
        """Tell it; telling it again changes nothing.

        Raises:
            TrackingAwayError: tell it again later.
            CalibrationError: it can never be told.
        """


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """How the mirror goes about it.

    Attributes:
        poll_seconds: pause between two looks at an empty outbox.
        first_pause_seconds: pause after the first failure; doubles with each further one.
        longest_pause_seconds: longest pause between two tries.
        lease_seconds: longest time for one entry; a longer one calls ``on_overrun``.
        event_seconds: how long the server must be away before an event says so.
    """

    poll_seconds: float = 1.0
    first_pause_seconds: float = 1.0
    longest_pause_seconds: float = 60.0
    lease_seconds: float = LEASE_SECONDS
    event_seconds: float = 60.0


class Mirror:
    """Delivers the outbox of one database.

    Args:
        database: of this process; migrated.
        connect: reaches the server; called until it succeeds once, and not before there is
            something to tell.
        owner: names this process in leases, unique among all.
        settings: defaults when None.
        on_overrun: called, from another thread, when one entry takes as long as its lease. After
            that another process may deliver it, so this one must not go on: the real one leaves.
    """

    def __init__(
        self,
        database: Database,
        connect: Callable[[], Teller],
        owner: str,
        settings: MirrorSettings | None = None,
        *,
        on_overrun: Callable[[], None],
    ) -> None:
        self._database = database
        self._connect = connect
        self._owner = owner
        self._settings = settings or MirrorSettings()
        self._on_overrun = on_overrun
        self._teller: Teller | None = None

    def run(self, stop: threading.Event, wait: Callable[[float], object] | None = None) -> None:
        """Deliver until ``stop`` is set; the database and the server may come and go.

        Args:
            stop: set from outside.
            wait: pauses for so many seconds; waits for ``stop`` when None.
        """
        pause_for = wait or stop.wait
        failures = 0
        while not stop.is_set():
            try:
                step = self.step()
            except StoreError as error:
                _log.warning("the database failed: %s", error)
                step = "away"
            if step == "delivered":
                failures = 0
            elif step == "idle":
                failures = 0
                pause_for(self._settings.poll_seconds)
            else:
                failures += 1
                pause_for(self._pause(failures))

    def step(self) -> Step:
        """Deliver one entry, if there is one and the server takes it.

        Raises:
            StoreError: the database failed; the entry is delivered again later.
        """
        with self._database.read() as connection:
            if not anything_waiting(connection):
                return "idle"
        entry: Entry | None = None
        try:
            # Before an entry is claimed: making a local store takes many seconds.
            teller = self._teller = self._teller or self._connect()
            entry = self._claim()
            if entry is None:
                return "idle"
            with _Watch(self._settings.lease_seconds, self._on_overrun):
                teller.deliver(entry)
        except TrackingAwayError as error:
            self._put_off(entry, error)
            return "away"
        except LeaseLostError as error:
            _log.warning("%s", error)
            return "faulty"
        except StoreError as error:
            if entry is None or not isinstance(error, NotFoundError):
                raise
            return self._give_up(entry, error)
        except CalibrationError as error:
            if entry is None:
                raise
            return self._give_up(entry, error)
        except Exception as error:  # noqa: BLE001 - whatever MLflow does, the mirror goes on
            return self._fault(entry, error)
        return self._delivered(entry)

    def _claim(self) -> Entry | None:
        seconds = self._settings.lease_seconds
        return self._database.run(
            lambda connection: claim_next(connection, self._database, self._owner, seconds=seconds)
        )

    def _delivered(self, entry: Entry) -> Step:
        def commit(connection: Connection) -> None:
            deliver(connection, self._database, entry)
            resolve(connection, AWAY_KEY)

        try:
            self._database.run(commit)
        except LeaseLostError as error:
            _log.warning("%s", error)
        return "delivered"

    def _put_off(self, entry: Entry | None, error: TrackingAwayError) -> None:
        def commit(connection: Connection) -> TrackingTotals:
            found = put_off(connection, self._database, entry)
            since = found.away_since
            now = self._database.now(connection)
            if since is not None and now - since >= self._settings.event_seconds:
                open_event(
                    connection,
                    "tracking_unreachable",
                    "warning",
                    "The tracking server does not answer; nothing is lost, entries wait",
                    details={"waiting": found.waiting, "reason": error.reason},
                    dedup_key=AWAY_KEY,
                )
            return found

        found = self._database.run(commit)
        _log.warning("the tracking server is away, %d entries wait: %s", found.waiting, error)

    def _give_up(self, entry: Entry, error: Exception) -> Step:
        reason = str(error)

        def commit(connection: Connection) -> None:
            give_up(connection, self._database, entry, reason)
            open_event(
                connection,
                "tracking_failed",
                "warning",
                f"MLflow will never take the {entry.kind} of {entry.drafter}",
                drafter=entry.drafter,
                details={"entry": entry.id, "kind": entry.kind, "reason": reason[:1000]},
                dedup_key=f"tracking_failed/{entry.drafter}",
            )

        try:
            self._database.run(commit)
        except LeaseLostError as lost:
            _log.warning("%s", lost)
            return "faulty"
        _log.error("entry %d of %s is kept, not told: %s", entry.id, entry.drafter, reason)
        return "delivered"

    def _fault(self, entry: Entry | None, error: Exception) -> Step:
        """Something that nobody foresaw: try again a few times, then go on with the next entry."""
        _log.error("telling entry %s failed", entry and entry.id, exc_info=error)
        if entry is None:
            return "faulty"
        if entry.faults + 1 >= _FAULTS_ALLOWED:
            return self._give_up(entry, error)
        try:
            self._database.run(lambda connection: give_back(connection, self._database, entry))
        except LeaseLostError as lost:
            _log.warning("%s", lost)
        return "faulty"

    def _pause(self, failures: int) -> float:
        settings = self._settings
        longest = settings.first_pause_seconds * 2.0 ** min(failures - 1, 30)
        return min(settings.longest_pause_seconds, longest) * random.uniform(0.5, 1.0)


class _Watch:
    """Calls out when its block takes too long; the block itself cannot be interrupted."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._timer = threading.Timer(seconds, call)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
