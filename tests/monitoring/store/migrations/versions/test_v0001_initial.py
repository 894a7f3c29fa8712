"""The first migration: its guards stand in the database itself, for every client of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine

from monitoring.store.database import Database
from monitoring.store.migrate import configuration, upgrade
from tests.monitoring.store.store_fixtures import registered


@pytest.fixture
def file(tmp_path: Path) -> Path:
    database = Database.open(f"sqlite:///{tmp_path / 'store.db'}")
    upgrade(database)
    registered(database)
    database.close()
    return tmp_path / "store.db"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE revisions SET calibration = x'00'",
        "DELETE FROM revisions",
        "UPDATE publications SET revision = 7",
        "DELETE FROM publications",
        "UPDATE audit SET actor = 'x'",
        "DELETE FROM audit",
        "UPDATE drafters SET publication = 0",
        "UPDATE drafters SET version = 0",
    ],
)
def test_guards_hold_for_any_client(file: Path, statement: str) -> None:
    other = sqlite3.connect(file)
    with pytest.raises(sqlite3.IntegrityError, match=r"immutable|only grow"):
        other.execute(statement)
    other.close()


def test_sqlite_file_gives_pages_back_and_never_reuses_an_id(file: Path) -> None:
    other = sqlite3.connect(file)
    assert other.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    tables = [row[0] for row in other.execute("SELECT sql FROM sqlite_master WHERE name = 'jobs'")]
    assert "AUTOINCREMENT" in tables[0]
    other.close()


def test_there_is_no_way_back(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'plain.db'}")
    with engine.connect() as connection:
        command.upgrade(configuration(connection), "head")
        with pytest.raises(NotImplementedError, match="empty database"):
            command.downgrade(configuration(connection), "base")
    engine.dispose()
