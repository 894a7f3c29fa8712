"""What a worker does unasked: retention, and reports that have grown old."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from sqlalchemy import Connection

from monitoring.store.database import Database
from monitoring.store.jobs import enqueue
from monitoring.store.publications import publication_numbers
from monitoring.store.reports import latest_report
from monitoring.store.retention import apply_retention
from monitoring.store.revisions import aliases
from monitoring.store.telemetry import counters
from monitoring.telemetry_report import REPORT_KIND

__all__ = ["Chores"]

_log = logging.getLogger(__name__)

# How soon a promotion is noticed, and how often the latest report is looked at otherwise: that
# reads the whole document.
_LOOK_SECONDS: Final = 1.0
_FULL_LOOK_SECONDS: Final = 30.0


class Chores:
    """Rounds that are due by time; each call does what is due and returns.

    Args:
        database: of this process.
        report_seconds: age at which a report is made anew, if rows came since.
        retention_seconds: oldest telemetry kept; None keeps all.
        retention_bytes: telemetry kept at most; None keeps all.
        history_seconds: resolved events and silent engines are kept so long; None keeps all.
        every_seconds: pause between two rounds of retention.
        monotonic: seconds from any origin.
    """

    def __init__(
        self,
        database: Database,
        *,
        report_seconds: float,
        retention_seconds: float | None,
        retention_bytes: int | None,
        history_seconds: float | None = None,
        every_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._report_seconds = report_seconds
        self._retention_seconds = retention_seconds
        self._retention_bytes = retention_bytes
        self._history_seconds = history_seconds
        self._every_seconds = every_seconds
        self._monotonic = monotonic
        self._next_retention = monotonic()
        self._next_look = monotonic()
        self._looked: dict[str, tuple[int, float]] = {}  # publication and time of the full look

    def run(self) -> None:
        """Do what is due.

        Raises:
            StoreError: the database failed; what was not done stays due.
        """
        now = self._monotonic()
        if now >= self._next_look:
            self._order_reports(now)
            self._next_look = now + _LOOK_SECONDS
        if now >= self._next_retention:
            removed = apply_retention(
                self._database,
                max_age_seconds=self._retention_seconds,
                max_bytes=self._retention_bytes,
                history_seconds=self._history_seconds,
            )
            _log.debug("retention: %s", removed)
            self._next_retention = now + self._every_seconds

    def _order_reports(self, now: float) -> None:
        """Queue a report for every drafter whose latest one is of another revision, or old."""
        with self._database.read() as connection:
            seen = {
                name: number
                for name, number in publication_numbers(connection).items()
                if self._worth_a_look(name, number, now)
            }
            due = [name for name in seen if self._is_due(connection, name)]
        for name in due:
            self._database.run(partial(_order, drafter=name))
        self._looked |= {name: (number, now) for name, number in seen.items()}

    def _worth_a_look(self, drafter: str, publication: int, now: float) -> bool:
        looked_at, when = self._looked.get(drafter, (0, 0.0))
        return publication != looked_at or now - when >= _FULL_LOOK_SECONDS

    def _is_due(self, connection: Connection, drafter: str) -> bool:
        received_at = counters(connection, drafter).last_received_at
        if received_at is None:
            return False  # nothing to report on
        latest = latest_report(connection, drafter, REPORT_KIND)
        if latest is None or latest.revision != aliases(connection, drafter).champion:
            return True
        age = self._database.now(connection) - latest.created_at
        return age >= self._report_seconds and received_at > latest.created_at


def _order(connection: Connection, drafter: str) -> None:
    enqueue(connection, drafter, "report", {}, actor="worker")
