"""What real drivers raise, in the words of the store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from calib.errors import CalibrationError, InvalidInputError
from monitoring.store.database import Database
from monitoring.store.driver_errors import translated
from monitoring.store.errors import (
    ConflictError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from tests.monitoring.store.store_fixtures import only_postgresql, registered
from tests.postgres_server import shared_server


def raised(url: str, *statements: str) -> SQLAlchemyError:
    """The error of the last of these statements."""
    engine = create_engine(url)
    try:
        with pytest.raises(SQLAlchemyError) as caught, engine.begin() as connection:  # noqa: PT012
            for statement in statements:
                connection.execute(text(statement))
    finally:
        engine.dispose()
    return caught.value


def sqlite_error(name: str, message: str = "broken") -> OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = getattr(sqlite3, name)
    return OperationalError("SELECT 1", {}, error)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_BUSY", StoreBusyError),
        ("SQLITE_BUSY_SNAPSHOT", StoreBusyError),
        ("SQLITE_LOCKED", StoreBusyError),
        ("SQLITE_FULL", StoreFullError),
        ("SQLITE_IOERR_READ", StoreUnavailableError),
        ("SQLITE_READONLY_DBMOVED", StoreUnavailableError),
        ("SQLITE_CANTOPEN", StoreUnavailableError),
        ("SQLITE_CORRUPT", StoreUnavailableError),
        ("SQLITE_NOTADB", StoreUnavailableError),
        ("SQLITE_CONSTRAINT_UNIQUE", ConflictError),
        ("SQLITE_ERROR", StoreError),
    ],
)
def test_codes_of_sqlite(name: str, kind: type[StoreError]) -> None:
    found = translated(sqlite_error(name))
    assert type(found) is kind
    assert "broken" in str(found)
    assert type(translated(sqlite_error(name).orig)) is kind  # type: ignore[arg-type]


def test_failed_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite_error("SQLITE_IOERR_SHMSIZE")
    assert type(translated(error, file=tmp_path / "store.db")) is StoreUnavailableError
    assert type(translated(error, file=tmp_path / "none" / "store.db")) is StoreUnavailableError
    monkeypatch.setattr("monitoring.store.driver_errors._SMALLEST_FREE_BYTES", 2**62)
    assert type(translated(error, file=tmp_path / "store.db")) is StoreFullError


def test_missing_tables_name_the_remedy(empty_url: str) -> None:
    found = translated(raised(empty_url, "SELECT * FROM drafters"))
    assert type(found) is StoreUnavailableError
    assert "run the migrations" in str(found)


def test_constraints_are_conflicts(database: Database) -> None:
    registered(database)
    copy = "INSERT INTO tokens VALUES ('a', 'b', 'c', 'd', 1, NULL, NULL)"
    found = translated(raised(database.url, copy, copy))
    assert type(found) is ConflictError
    assert "constraint" in str(found)


def test_faults_of_the_program_stay_general(database: Database) -> None:
    found = translated(raised(database.url, "SELEKT 1"))
    assert type(found) is StoreError
    assert type(translated(ArgumentError("wrong"))) is StoreError


def test_no_connection_left_is_busy() -> None:
    assert type(translated(PoolTimeoutError("pool"))) is StoreBusyError


@only_postgresql
@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SET lock_timeout = 50; LOCK TABLE drafters", StoreBusyError),
        ("SET statement_timeout = 50; SELECT pg_sleep(30)", StoreBusyError),
        ("SET TRANSACTION READ ONLY; DELETE FROM tokens", StoreUnavailableError),
        ("DO $$ BEGIN RAISE SQLSTATE '53100'; END $$", StoreFullError),
        ("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$", StoreBusyError),
        ("DO $$ BEGIN RAISE SQLSTATE '40P01'; END $$", StoreBusyError),
        ("DO $$ BEGIN RAISE SQLSTATE '57P03'; END $$", StoreUnavailableError),
        ("SELECT 1 / 0", InvalidInputError),
    ],
)
def test_states_of_postgresql(
    database: Database, statement: str, kind: type[CalibrationError]
) -> None:
    with shared_server().connect(str(database.engine.url.database)) as other, other.transaction():
        if "LOCK TABLE" in statement:
            other.execute("LOCK TABLE drafters IN ACCESS EXCLUSIVE MODE")
        parts = [statement] if "$$" in statement else statement.split("; ")
        error = raised(database.url, *parts)
    assert isinstance(error, DBAPIError)
    found = translated(error, committing=True)
    assert type(found) is kind
    assert "\n" not in str(found)
    if isinstance(found, StoreUnavailableError) and "READ ONLY" in statement:
        assert not found.outcome_unknown  # it said no, before any commit


@only_postgresql
def test_addresses_where_nothing_answers(database: Database) -> None:
    url = database.engine.url
    for wrong in (url.set(port=1), url.set(database="none"), url.set(username="nobody")):
        found = translated(raised(wrong.render_as_string(hide_password=False), "SELECT 1"))
        assert type(found) is StoreUnavailableError, wrong
