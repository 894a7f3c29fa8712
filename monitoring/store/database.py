"""Connections and transactions: SQLite in WAL mode or PostgreSQL, with one set of promises.

- :meth:`Database.read` sees one snapshot; :meth:`Database.write` is one transaction, durable when
  the block ends without an error (SQLite ``synchronous=FULL``, PostgreSQL's default).
- Errors of the drivers come out as the types of :mod:`monitoring.store.errors`.
- :meth:`Database.run` repeats what can be repeated. A connection lost *during* a commit cannot:
  the work may be done, so only the caller, with an idempotency key, may send it again.
- A :class:`Database` survives the database: after an outage the same object works again.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from calib.errors import CalibrationError, ConfigurationError
from monitoring.store.clock import Clock, SteadyClock, system_clock
from monitoring.store.driver_errors import translated
from monitoring.store.errors import StoreBusyError, StoreError, StoreUnavailableError
from monitoring.store.tables import store_clock

__all__ = ["Database", "Dialect", "current_time", "lease_time"]

T = TypeVar("T")
Dialect = Literal["sqlite", "postgresql"]

BUSY_SECONDS: Final = 5.0
ATTEMPTS: Final = 6
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_ASK_AGAIN: Final = (0.001, 0.005)  # seconds; a commit takes about as long
_JOURNAL_BYTES: Final = 64 * 1024 * 1024  # the log is cut back to this after a burst
_POSTGRESQL_OPTIONS: Final = (
    "-c statement_timeout=60000 -c lock_timeout=10000 -c idle_in_transaction_session_timeout=60000"
)


class Database:
    """One database, shared by all threads of a process; child processes open their own.

    Attributes:
        url: the address as given; it may hold a password.
        dialect: ``"sqlite"`` or ``"postgresql"``.
        clock: the injected wall clock.
        engine: SQLAlchemy's engine, for what no method offers.
    """

    def __init__(self, url: str, engine: Engine, clock: Clock, busy_seconds: float) -> None:
        self.url = url
        self.dialect: Dialect = "sqlite" if engine.dialect.name == "sqlite" else "postgresql"
        self.clock = clock
        self._file = Path(str(engine.url.database)) if self.dialect == "sqlite" else None
        self._busy_seconds = busy_seconds
        # Threads of one process queue here instead of polling SQLite's lock against each other.
        self._writer = threading.Lock()
        self.engine = engine.execution_options(store_clock=SteadyClock(clock))

    @classmethod
    def open(
        cls, url: str, *, clock: Clock = system_clock, busy_seconds: float = BUSY_SECONDS
    ) -> Self:
        """The database at ``url``; nothing is connected yet, folders of a SQLite file are made.

        Args:
            url: ``sqlite:///relative.db``, ``sqlite:////absolute.db`` or ``postgresql://…``.
            clock: seconds since the epoch; PostgreSQL's own is used where there is one.
            busy_seconds: how long one attempt waits for a lock.

        Raises:
            ConfigurationError: an address that is neither.
            StoreUnavailableError: the folder of the file cannot be made.
        """
        parsed = _checked_url(url)
        if parsed.drivername == "sqlite":
            engine = _sqlite_engine(parsed, busy_seconds)
        else:
            engine = _postgresql_engine(parsed, busy_seconds)
        return cls(url, engine, clock, busy_seconds)

    def __repr__(self) -> str:
        return f"Database({self.engine.url.render_as_string(hide_password=True)!r})"

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one consistent snapshot and may not write.

        Raises:
            StoreError: typed by what went wrong.
        """
        options: dict[str, Any] = {"store_mode": "read"}
        if self.dialect == "postgresql":
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._connected(options) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A connection whose transaction is committed at the end and rolled back on an error.

        On SQLite the write lock is taken at once (``BEGIN IMMEDIATE``). Not for nesting.

        Raises:
            StoreError: typed by what went wrong; nothing was written, except where
                ``StoreUnavailableError.outcome_unknown`` says otherwise.
        """
        with self._sole_writer(), self._connected({"store_mode": "write"}) as connection:
            yield connection
            try:
                connection.commit()
            except SQLAlchemyError as error:
                raise self._typed(error, connection, committing=True) from error

    def run(self, work: Callable[[Connection], T], *, attempts: int = ATTEMPTS) -> T:
        """What ``work`` returns, done in one write transaction that is repeated while it can be.

        Repeated are lock conflicts, deadlocks, serialisation failures and lost connections, with
        growing, jittered pauses. ``work`` must have no other effects than on its connection.

        Raises:
            StoreBusyError: still locked after ``attempts``.
            StoreUnavailableError: still unreachable, or lost during a commit.
            StoreError: what repeating cannot mend, at once.
        """
        attempt = 1
        while True:
            try:
                with self.write() as connection:
                    return work(connection)
            except (StoreBusyError, StoreUnavailableError) as error:
                if attempt >= attempts or getattr(error, "outcome_unknown", False):
                    raise
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**attempt)
            time.sleep(pause * random.uniform(0.5, 1.0))
            attempt += 1

    def now(self, connection: Connection) -> float:
        """Seconds since the epoch on the clock of leases: one for all processes, never going back.

        PostgreSQL's own clock, or on SQLite :class:`monitoring.store.clock.SteadyClock`, raised to
        the latest time any process has seen. A write transaction leaves its time for the others.
        """
        seconds = lease_time(connection)
        writing = connection.get_execution_options().get("store_mode") == "write"
        if self.dialect == "sqlite" and writing:
            seen = store_clock.update().where(store_clock.c.seconds < seconds)
            connection.execute(seen.values(seconds=seconds))
        return seconds

    def check(self) -> None:
        """Return when the database answers.

        Raises:
            StoreUnavailableError: it does not, for whatever reason.
        """
        probe = "SELECT count(*) FROM sqlite_master" if self.dialect == "sqlite" else "SELECT 1"
        try:
            with self.read() as connection:
                connection.execute(text(probe))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            raise StoreUnavailableError(error.reason, error.remedy) from error

    def close(self) -> None:
        """Close all connections; using the database again opens new ones."""
        self.engine.dispose()

    @contextmanager
    def _sole_writer(self) -> Iterator[None]:
        if self.dialect != "sqlite":
            yield
            return
        if not self._writer.acquire(timeout=self._busy_seconds):
            raise StoreBusyError("another thread of this process is writing")
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def _connected(self, options: dict[str, Any]) -> Iterator[Connection]:
        connection: Connection | None = None
        try:
            with self.engine.connect() as connection:
                connection.execution_options(**options)
                connection.begin()
                if self.dialect == "sqlite":
                    self._begin_sqlite(connection, writing=options["store_mode"] == "write")
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as error:
            if isinstance(error.__context__, StoreError):  # only cleaning up failed after it
                raise error.__context__ from error.__context__.__cause__
            raise self._typed(error, connection) from error

    def _begin_sqlite(self, connection: Connection, *, writing: bool) -> None:
        driver = connection.connection.cursor()
        try:
            driver.execute(f"PRAGMA query_only={'OFF' if writing else 'ON'}")
            if writing:
                _insist(driver, "BEGIN IMMEDIATE", self._busy_seconds)
            else:
                driver.execute("BEGIN")
        finally:
            driver.close()

    def _typed(
        self,
        error: SQLAlchemyError | sqlite3.Error,
        connection: Connection | None,
        *,
        committing: bool = False,
    ) -> CalibrationError:
        found = translated(error, committing=committing, file=self._file)
        # A connection that saw the disk fail may hold stale state; the next one starts afresh.
        usable = connection is not None and not connection.closed and not connection.invalidated
        if connection is not None and usable and isinstance(found, StoreUnavailableError):
            connection.invalidate()
        return found


def current_time(connection: Connection) -> float:
    """Seconds since the epoch for time stamps: PostgreSQL's clock, or the injected wall clock."""
    if connection.dialect.name == "postgresql":
        return _server_time(connection)
    return _steady_clock(connection).wall()


def lease_time(connection: Connection) -> float:
    """:meth:`Database.now` for those who have only the connection; leaves no trace."""
    if connection.dialect.name == "postgresql":
        return _server_time(connection)
    seen = connection.execute(select(store_clock.c.seconds)).scalar()
    return _steady_clock(connection)(0.0 if seen is None else seen)


def _server_time(connection: Connection) -> float:
    seconds = connection.execute(select(func.extract("epoch", func.clock_timestamp())))
    return float(seconds.scalar_one())


def _steady_clock(connection: Connection) -> SteadyClock:
    clock: SteadyClock = connection.get_execution_options()["store_clock"]
    return clock


def _checked_url(url: str) -> URL:
    remedy = "give sqlite:///path/to/file.db or postgresql://user@host/database"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError("database_url", url, remedy) from error
    if parsed.drivername == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(database=str(Path(str(parsed.database)).expanduser().absolute()))
    if parsed.drivername in ("postgres", "postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise ConfigurationError("database_url", parsed.render_as_string(hide_password=True), remedy)


def _sqlite_engine(url: URL, busy_seconds: float) -> Engine:
    folder = Path(str(url.database)).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(f"folder {folder} cannot be made: {error.strerror}") from error
    engine = create_engine(
        url,
        connect_args={"timeout": busy_seconds},
        pool_size=10,
        max_overflow=30,  # files, not servers: threads need not wait for each other to read
        pool_timeout=busy_seconds,
    )

    def prepare(connection: Any, _record: object) -> None:
        # The driver's own transactions begin too late for snapshots and BEGIN IMMEDIATE.
        connection.isolation_level = None
        cursor = connection.cursor()
        try:
            # Both need the write lock, and both stay with the file: once is enough.
            if cursor.execute("PRAGMA page_count").fetchone() == (0,):
                _insist(cursor, "PRAGMA auto_vacuum=INCREMENTAL", busy_seconds)
            if cursor.execute("PRAGMA journal_mode").fetchone() != ("wal",):
                _insist(cursor, "PRAGMA journal_mode=WAL", busy_seconds)
            for pragma in (
                "synchronous=FULL",
                "foreign_keys=ON",
                f"journal_size_limit={_JOURNAL_BYTES}",
            ):
                cursor.execute(f"PRAGMA {pragma}")
        finally:
            cursor.close()

    event.listen(engine, "connect", prepare)
    return engine


def _insist(driver: DBAPICursor, statement: str, seconds: float) -> None:
    """Execute a statement that needs a lock of SQLite, asking again until ``seconds`` are over.

    SQLite's own waiting sleeps longer the longer it has waited, so that among many writers the
    newcomers win and somebody starves; and it does not wait at all for a change of the journal.
    Here all ask equally often.
    """
    deadline = time.monotonic() + seconds
    driver.execute("PRAGMA busy_timeout=0")
    try:
        while True:
            try:
                driver.execute(statement)
                return
            except sqlite3.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not busy or time.monotonic() >= deadline:
                    raise
            time.sleep(random.uniform(*_ASK_AGAIN))
    finally:
        driver.execute(f"PRAGMA busy_timeout={round(1000 * seconds)}")


def _postgresql_engine(url: URL, busy_seconds: float) -> Engine:
    defaults = {
        "connect_timeout": 5,
        "application_name": "dspark-calib",
        "options": _POSTGRESQL_OPTIONS,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    return create_engine(
        url,
        pool_pre_ping=True,
        pool_timeout=busy_seconds,
        # What the address itself says wins.
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
    )
