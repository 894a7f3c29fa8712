from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from api.publication_changes import CHANNEL, PostgresqlHints, SqliteHints, change_hints
from monitoring.store import publications
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from tests.postgres_server import dialects, shared_server
from tests.support.publications import publish, register


@pytest.fixture(params=dialects())
def databases(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Database, Database]]:
    """Two processes' views of one database with a drafter in it."""
    name = f"hints_{time.monotonic_ns()}"
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'hints.db'}"
    else:
        url = shared_server().create_database(name)
    ours, theirs = Database.open(url), Database.open(url)
    upgrade(ours)
    register(theirs)
    yield ours, theirs
    ours.close()
    theirs.close()
    if request.param == "postgresql":
        shared_server().drop_database(name)


def test_the_channel_is_the_one_that_publications_use() -> None:
    assert CHANNEL == publications.CHANNEL


def test_each_database_has_its_kind_of_hint(databases: tuple[Database, Database]) -> None:
    ours, _ = databases
    with closing(change_hints(ours, 0.01)) as hints:
        expected = SqliteHints if ours.dialect == "sqlite" else PostgresqlHints
        assert isinstance(hints, expected)


def test_a_publication_of_another_process_ends_the_wait(
    databases: tuple[Database, Database],
) -> None:
    ours, theirs = databases
    with closing(change_hints(ours, 0.01)) as hints:
        publish(theirs, [1.5] * 7)
        started = time.monotonic()
        hints.wait(threading.Event(), 30.0)
        assert time.monotonic() - started < 10.0


def test_a_poke_ends_the_wait(databases: tuple[Database, Database]) -> None:
    ours, _ = databases
    poked = threading.Event()
    poked.set()
    with closing(change_hints(ours, 0.01)) as hints:
        started = time.monotonic()
        hints.wait(poked, 30.0)
        assert time.monotonic() - started < 10.0


def test_without_news_the_wait_ends_in_time(databases: tuple[Database, Database]) -> None:
    ours, _ = databases
    with closing(change_hints(ours, 0.01)) as hints:
        started = time.monotonic()
        hints.wait(threading.Event(), 0.3)
        assert 0.2 < time.monotonic() - started < 20.0


def test_one_publication_is_one_hint(databases: tuple[Database, Database]) -> None:
    ours, theirs = databases
    with closing(change_hints(ours, 0.01)) as hints:
        publish(theirs, [1.5] * 7)
        hints.wait(threading.Event(), 30.0)
        started = time.monotonic()
        hints.wait(threading.Event(), 0.2)
        assert time.monotonic() - started >= 0.15
