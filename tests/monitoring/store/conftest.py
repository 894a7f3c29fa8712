"""Databases for tests: each a migrated copy of its own, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from tests.postgres_server import dialects, shared_server

_TEMPLATE = "store_template"
_numbers = itertools.count(1)


@pytest.fixture(params=dialects())
def dialect(request: pytest.FixtureRequest) -> str:
    """Each of the databases in turn."""
    name: str = request.param
    return name


@pytest.fixture
def empty_url(dialect: str, tmp_path: Path) -> Iterator[str]:
    """The address of a database without tables."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    name = f"empty_{next(_numbers)}"
    yield shared_server().create_database(name)
    shared_server().drop_database(name)


@pytest.fixture
def database_url(dialect: str, tmp_path: Path, sqlite_template: Path) -> Iterator[str]:
    """The address of a database with the newest tables and nothing in them."""
    if dialect == "sqlite":
        shutil.copy(sqlite_template, tmp_path / "store.db")
        yield f"sqlite:///{tmp_path / 'store.db'}"
        return
    name = f"store_{next(_numbers)}"
    yield shared_server().create_database(name, _postgresql_template())
    shared_server().drop_database(name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with the newest tables, on the machine's clock."""
    opened = Database.open(database_url)
    yield opened
    opened.close()


@pytest.fixture
def sqlite_url(tmp_path: Path, sqlite_template: Path) -> str:
    """The address of a SQLite database with the newest tables."""
    shutil.copy(sqlite_template, tmp_path / "store.db")
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the newest tables, closed, so that one file is all of it."""
    path = tmp_path_factory.mktemp("store") / "template.db"
    database = Database.open(f"sqlite:///{path}")
    upgrade(database)
    database.close()
    return path


@cache
def _postgresql_template() -> str:
    database = Database.open(shared_server().create_database(_TEMPLATE))
    upgrade(database)
    database.close()
    return _TEMPLATE
