from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from api import engine_sightings
from api.engine_sightings import EngineSightings
from api.poll_query import PollQuery
from monitoring.store.database import Database
from monitoring.store.engines import EngineRow, list_engines
from monitoring.store.errors import StoreUnavailableError
from tests.support.publications import register
from tests.support.service import empty_database


class Hands:
    """A clock that a test turns."""

    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def database(tmp_path: Path, clock: Hands) -> Iterator[Database]:
    opened = Database.open(empty_database(tmp_path), clock=clock)
    register(opened)
    yield opened
    opened.close()


def rows(database: Database) -> list[EngineRow]:
    with database.read() as connection:
        return list_engines(connection, "drafter")


def test_the_newest_poll_of_each_engine_is_written(database: Database, clock: Hands) -> None:
    sightings = EngineSightings(database)
    sightings.note("drafter", PollQuery(gamma=7, engine="a", applied_publication=1))
    clock.seconds += 5
    sightings.note(
        "drafter",
        PollQuery(
            gamma=7,
            engine="a",
            client="0.1.0",
            applied_publication=2,
            applied_revision=1,
            state="fresh",
        ),
    )
    sightings.note("drafter", PollQuery(gamma=7, engine="b"))
    sightings.note("drafter", PollQuery(gamma=7))  # says nothing about itself
    assert rows(database) == []  # nothing on the path of a poll
    asyncio.run(sightings.flush())
    assert rows(database) == [
        EngineRow("drafter", "a", "0.1.0", 2, 1, "fresh", 105.0, 105.0),
        EngineRow("drafter", "b", None, None, None, None, 105.0, 105.0),
    ]


def test_a_failure_keeps_what_was_noted(
    database: Database, clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    sightings = EngineSightings(database)
    sightings.note("drafter", PollQuery(gamma=7, engine="a", applied_publication=1))
    sightings.note("drafter", PollQuery(gamma=7, engine="b", applied_publication=1))

    def away(*_: object) -> None:
        raise StoreUnavailableError("away")

    async def story() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(sightings, "_write", away)
            await sightings.flush()
        clock.seconds += 1
        sightings.note("drafter", PollQuery(gamma=7, engine="b", applied_publication=2))
        await sightings.flush()

    asyncio.run(story())
    assert {row.engine: row.applied_publication for row in rows(database)} == {"a": 1, "b": 2}


def test_engines_without_end_do_not_fill_the_memory(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_sightings, "_MOST_ENGINES", 3)
    sightings = EngineSightings(database)
    for number in range(10):
        sightings.note("drafter", PollQuery(gamma=7, engine=f"e{number}"))
    sightings.note("drafter", PollQuery(gamma=7, engine="e0"))  # a known one is still noted
    asyncio.run(sightings.flush())
    assert len(rows(database)) == 3
    assert sightings.dropped == 7


def test_it_writes_by_itself_and_at_the_end(database: Database) -> None:
    async def story() -> None:
        sightings = EngineSightings(database, interval=0.01)
        sightings.start()
        sightings.note("drafter", PollQuery(gamma=7, engine="a"))
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(rows, database):
                await asyncio.sleep(0.01)
        sightings.note("drafter", PollQuery(gamma=7, engine="b"))
        await sightings.stop()

    asyncio.run(story())
    assert [row.engine for row in rows(database)] == ["a", "b"]
