"""Transactions that hold what they promise, and errors that say what happened."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from calib.errors import ConfigurationError
from monitoring.store.clock import system_clock
from monitoring.store.database import Database, current_time, lease_time
from monitoring.store.drafters import list_drafters
from monitoring.store.errors import (
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from monitoring.store.telemetry import counters, store_batches
from tests.monitoring.store.store_fixtures import (
    START,
    ManualClock,
    batch,
    only_postgresql,
    register,
    registered,
)
from tests.monitoring.store.store_processes import running
from tests.postgres_server import PostgresServer, shared_server


def names(database: Database) -> list[str]:
    with database.read() as connection:
        return [drafter.name for drafter in list_drafters(connection)]


def test_write_commits_at_the_end_and_rolls_back_on_an_error(database: Database) -> None:
    with database.write() as connection:
        register(connection, "kept")
    with pytest.raises(ZeroDivisionError), database.write() as connection:  # noqa: PT012
        register(connection, "dropped")
        raise ZeroDivisionError
    assert names(database) == ["kept"]


def test_read_is_one_snapshot(database: Database) -> None:
    registered(database, "one")
    with database.read() as connection:
        assert len(list_drafters(connection)) == 1
        registered(database, "two")
        assert len(list_drafters(connection)) == 1
    assert names(database) == ["one", "two"]


def test_read_refuses_to_write(database: Database) -> None:
    with pytest.raises(StoreError, match=r"read-?only"), database.read() as connection:
        register(connection)
    registered(database)  # and the connection is fit for writing again


def test_run_returns_what_the_work_returns(database: Database) -> None:
    assert database.run(lambda connection: register(connection).name) == "code"


def test_run_repeats_what_can_be_repeated(database: Database) -> None:
    attempts: list[str] = []

    def work(connection: Connection) -> int:
        register(connection, f"try-{len(attempts)}")
        attempts.append("x")
        if len(attempts) < 3:
            raise StoreBusyError("locked")
        return len(attempts)

    assert database.run(work) == 3
    assert names(database) == ["try-2"]


def test_run_gives_up_and_never_repeats_an_unknown_outcome(database: Database) -> None:
    attempts: list[str] = []

    def work(_: Connection) -> None:
        attempts.append("x")
        raise StoreUnavailableError("lost", outcome_unknown=len(attempts) == 3)

    with pytest.raises(StoreUnavailableError):
        database.run(work, attempts=2)
    assert len(attempts) == 2
    with pytest.raises(StoreUnavailableError) as caught:
        database.run(work, attempts=9)
    assert caught.value.outcome_unknown
    assert len(attempts) == 3


def test_threads_write_together(database: Database) -> None:
    registered(database)

    def write() -> None:
        for _ in range(5):
            database.run(lambda connection: store_batches(connection, [batch()]))

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with database.read() as connection:
        assert counters(connection, "code").batches == 30


def test_check_and_close(database: Database) -> None:
    database.check()
    database.close()
    database.check()  # opens again


def test_clocks(database: Database) -> None:
    with database.write() as connection:
        now = database.now(connection)
        assert abs(now - time.time()) < 60
        assert lease_time(connection) >= now
        assert abs(current_time(connection) - now) < 60
    assert database.clock is system_clock


def test_injected_clock_is_the_time_of_sqlite(sqlite_url: str) -> None:
    database = Database.open(sqlite_url, clock=ManualClock())
    drafter = registered(database)
    assert drafter.created_at == START
    database.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "mysql://host/database",
        "sqlite://",
        "sqlite:///:memory:",
        "postgresql+asyncpg://host/database",
    ],
)
def test_addresses_of_neither_kind(url: str) -> None:
    with pytest.raises(ConfigurationError, match="database_url: got"):
        Database.open(url)


def test_passwords_are_not_shown() -> None:
    database = Database.open("postgresql://anna:secret@nowhere.invalid/store")
    assert database.dialect == "postgresql"
    assert "secret" not in repr(database)
    with pytest.raises(ConfigurationError) as caught:
        Database.open("mysql://anna:secret@host/store")
    assert "secret" not in str(caught.value)


def test_folder_of_the_file_is_made(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'a' / 'b' / 'store.db'}")
    database.check()
    assert (tmp_path / "a" / "b" / "store.db").exists()
    database.close()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreUnavailableError, match="cannot be made"):
        Database.open(f"sqlite:///{tmp_path / 'file' / 'store.db'}")


def test_relative_file_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = Database.open("sqlite:///store.db")
    monkeypatch.chdir("/")
    database.check()
    assert (tmp_path / "store.db").exists()
    database.close()


def test_sqlite_is_durable_and_checks_references(sqlite_url: str) -> None:
    database = Database.open(sqlite_url)
    with database.write() as connection:
        values = {
            pragma: connection.execute(text(f"PRAGMA {pragma}")).scalar()
            for pragma in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert values == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 5000,
    }
    database.close()


# SQLite locked by somebody else.


@pytest.mark.slow
def test_short_lock_of_another_process_is_waited_for(sqlite_url: str) -> None:
    with running("locks", sqlite_url, seconds=1.0) as other:
        assert json.loads(other.stdout.readline()) == {"locked": True}
        database = Database.open(sqlite_url, busy_seconds=0.2)
        registered(database)  # some attempts fail, a later one gets in
    assert names(database) == ["code"]
    database.close()


@pytest.mark.slow
def test_long_lock_of_another_process_is_busy_and_over_afterwards(sqlite_url: str) -> None:
    database = Database.open(sqlite_url, busy_seconds=0.1)
    with running("locks", sqlite_url, seconds=60.0) as other:
        assert json.loads(other.stdout.readline()) == {"locked": True}
        began = time.monotonic()
        with pytest.raises(StoreBusyError, match="another process holds the database"):
            database.run(register, attempts=3)
        assert 0.3 <= time.monotonic() - began < 20
        assert names(database) == []  # reading goes on
        database.check()
    registered(database)
    database.close()


def test_thread_that_holds_the_lock_makes_others_busy(sqlite_url: str) -> None:
    database = Database.open(sqlite_url, busy_seconds=0.1)
    with (
        database.write(),
        pytest.raises(StoreBusyError, match="another thread of this process"),
        database.write(),
    ):
        pass
    database.close()


# PostgreSQL that goes and comes back.


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """The shared server, running again at the end whatever the test did to it."""
    yield shared_server()
    shared_server().restart()


@only_postgresql
def test_postgresql_that_is_down_and_comes_back(database: Database, server: PostgresServer) -> None:
    registered(database)
    server.stop()
    for attempt in (database.check, lambda: database.run(register, attempts=2)):
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
            attempt()
        assert not caught.value.outcome_unknown
    server.start()
    database.check()
    registered(database, "after")
    assert names(database) == ["after", "code"]


@only_postgresql
@pytest.mark.parametrize("immediately", [False, True])
def test_postgresql_restarted_within_a_transaction(
    database: Database, server: PostgresServer, immediately: bool
) -> None:
    with pytest.raises(StoreUnavailableError), database.write() as connection:  # noqa: PT012
        register(connection, "lost")
        server.restart(immediately=immediately)
        register(connection, "lost-too")
    assert database.run(lambda connection: register(connection, "kept")).name == "kept"
    assert names(database) == ["kept"]


@only_postgresql
def test_connection_lost_at_the_commit_is_an_unknown_outcome(database: Database) -> None:
    name = database.engine.url.database or ""
    with pytest.raises(StoreUnavailableError) as caught, database.write() as connection:  # noqa: PT012
        register(connection)
        own = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        with shared_server().connect(name) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", [own])
    assert caught.value.outcome_unknown
    assert names(database) == []


@only_postgresql
def test_postgresql_restarted_under_load_loses_nothing_acknowledged(
    database: Database, server: PostgresServer
) -> None:
    registered(database)
    acknowledged: list[int] = []
    refused: list[StoreUnavailableError] = []
    stop = threading.Event()

    def write(writer: int) -> None:
        number = 0
        while not stop.is_set():
            name = f"{writer}-{number}"
            given = [batch(engine=name, key=name, received_at=time.time())]
            try:
                acknowledged.extend(database.run(partial(store_batches, batches=given)))
            except StoreUnavailableError as error:
                refused.append(error)
            number += 1

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(2):
        before = len(acknowledged)
        server.restart(immediately=bool(round_))
        deadline = time.monotonic() + 60
        while len(acknowledged) < before + 20 and time.monotonic() < deadline:
            stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join(60)
    with database.read() as connection:
        rows = connection.execute(text("SELECT id, engine FROM telemetry_batches")).all()
        totals = counters(connection, "code")
    assert {row.id for row in rows} >= set(acknowledged)
    assert len({row.engine for row in rows}) == len(rows) == totals.batches
    # What was stored without an answer is at most what had an unknown outcome.
    assert len(rows) - len(acknowledged) <= sum(
        e.outcome_unknown for e in refused if hasattr(e, "outcome_unknown")
    )


@only_postgresql
def test_locks_of_postgresql_end(database: Database) -> None:
    """Two transactions that wait for each other: one gives way and both get done."""
    registered(database, "a")
    registered(database, "b")
    both = threading.Barrier(2, timeout=30)
    met = threading.Event()

    def work(first: str, second: str) -> None:
        def touch(connection: Connection) -> None:
            update = "UPDATE drafters SET version = version + 1 WHERE name = :name"
            connection.execute(text(update), {"name": first})
            if not met.is_set():
                both.wait()
                met.set()
            connection.execute(text(update), {"name": second})

        database.run(touch)

    threads = [threading.Thread(target=work, args=order) for order in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with database.read() as connection:
        assert [drafter.version for drafter in list_drafters(connection)] == [3, 3]


def test_damaged_file_is_unavailable_until_it_is_mended(sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    whole = file.read_bytes()
    file.write_bytes(b"no database at all, but long enough to look like one" * 40)
    database = Database.open(sqlite_url)
    with pytest.raises(StoreUnavailableError, match="no SQLite database"):
        database.check()
    file.write_bytes(whole)
    database.check()
    registered(database)
    database.close()
