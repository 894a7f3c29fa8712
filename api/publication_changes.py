"""How a process learns that another one has published: a hint to look, never the news itself.

Hints may be missed or come too often; :class:`api.publication_feed.PublicationFeed` also looks
without one, and compares publication numbers.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from monitoring.store.database import Database

__all__ = ["CHANNEL", "ChangeHints", "PostgresqlHints", "SqliteHints", "change_hints"]

CHANNEL = "dspark_calib_publications"


class ChangeHints(Protocol):
    """Waits for a sign that the database has changed. One thread uses it at a time."""

    def wait(self, poked: threading.Event, seconds: float) -> None:
        """Return after a change, when ``poked`` is set, or after ``seconds``.

        Raises:
            Exception: whatever the driver raises; the hints must then be closed and made anew.
        """

    def close(self) -> None:
        """Give the connection back."""


class SqliteHints:
    """Asks ``PRAGMA data_version``, which changes when another connection commits.

    Args:
        database: an SQLite database.
        interval: seconds between two questions; each takes microseconds and no lock.
    """

    def __init__(self, database: Database, interval: float) -> None:
        self._interval = interval
        # Not from Database.read(): a snapshot would not see the version change.
        self._connection = database.engine.raw_connection()
        self._version = self._ask()

    def _ask(self) -> int:
        cursor = self._connection.cursor()
        try:
            cursor.execute("PRAGMA data_version")
            row: Any = cursor.fetchone()
            return int(row[0])
        finally:
            cursor.close()

    def wait(self, poked: threading.Event, seconds: float) -> None:
        """Return when the version has changed, when ``poked`` is set, or after ``seconds``."""
        left = seconds
        while left > 0 and not poked.wait(min(self._interval, left)):
            left -= self._interval
            version = self._ask()
            if version != self._version:
                self._version = version
                return

    def close(self) -> None:
        """Give the connection back."""
        self._connection.close()


class PostgresqlHints:
    """Listens on a channel that every publication notifies.

    Args:
        database: a PostgreSQL database.
    """

    def __init__(self, database: Database) -> None:
        import psycopg  # only where PostgreSQL is used

        url = database.engine.url.set(drivername="postgresql")
        # A connection of its own: notifications reach the connection that listens.
        self._connection = psycopg.connect(
            url.render_as_string(hide_password=False),
            autocommit=True,
            connect_timeout=5,
            application_name="dspark-calib feed",
        )
        self._connection.execute(f"LISTEN {CHANNEL}")

    def wait(self, poked: threading.Event, seconds: float) -> None:
        """Return after a notification, when ``poked`` is set, or after ``seconds``."""
        left = seconds
        while left > 0 and not poked.is_set():
            # In slices, because the wait on the socket does not see the event.
            slice_seconds = min(0.25, left)
            for _ in self._connection.notifies(timeout=slice_seconds, stop_after=1):
                return
            left -= slice_seconds

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def change_hints(database: Database, interval: float) -> ChangeHints:
    """The hints for this kind of database.

    Args:
        database: where publications are.
        interval: how often SQLite is asked, in seconds.
    """
    if database.dialect == "sqlite":
        return SqliteHints(database, interval)
    return PostgresqlHints(database)
