from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from api.publication_feed import PublicationFeed
from api.publication_variants import Published
from monitoring.store import drafters, publications
from monitoring.store.database import Database
from monitoring.store.errors import StoreUnavailableError
from monitoring.store.migrate import upgrade
from tests.postgres_server import dialects, shared_server
from tests.support.publications import publish, register
from tests.support.service import empty_database

PATIENCE = 30.0
FIRST = (1, 0)  # edition of a drafter that was just registered


@pytest.fixture(params=dialects())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield empty_database(tmp_path)
        return
    name = f"feed_{time.monotonic_ns()}"
    address = shared_server().create_database(name)
    database = Database.open(address)
    upgrade(database)
    database.close()
    yield address
    shared_server().drop_database(name)


@pytest.fixture
def theirs(url: str) -> Iterator[Database]:
    """What another process works with."""
    database = Database.open(url)
    register(database)
    yield database
    database.close()


@asynccontextmanager
async def following(url: str) -> AsyncIterator[PublicationFeed]:
    database = Database.open(url)
    feed = PublicationFeed(database, interval=0.01)
    await feed.start()
    try:
        yield feed
    finally:
        await feed.stop()
        database.close()


def number(feed: PublicationFeed, drafter: str = "drafter") -> int:
    found = feed.current(drafter)
    assert found is not None
    return found.number


def test_what_is_published_is_there_at_the_start(url: str, theirs: Database) -> None:
    publish(theirs, [1.5] * 7)

    async def story() -> None:
        async with following(url) as feed:
            found = feed.current("drafter")
            assert found is not None
            assert found.number == 2
            assert json.loads(found.publication.document)["temperatures"] == [1.5] * 7
            assert feed.alive
            assert feed.reachable
            assert feed.current("nobody") is None

    asyncio.run(story())


def test_a_publication_of_another_process_wakes_who_waits(url: str, theirs: Database) -> None:
    async def story() -> None:
        async with following(url) as feed:
            waits = [asyncio.create_task(feed.wait("drafter", FIRST, PATIENCE)) for _ in range(100)]
            other = asyncio.create_task(feed.wait("nobody", (0, 0), PATIENCE))
            await asyncio.sleep(0)
            assert feed.waiting == 101
            await asyncio.to_thread(publish, theirs, [1.5] * 7)
            await asyncio.wait_for(asyncio.gather(*waits), PATIENCE / 2)
            assert number(feed) == 2
            assert not other.done()
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
            assert feed.waiting == 0

    asyncio.run(story())


def test_exploration_that_another_process_raises_wakes_who_waits(
    url: str, theirs: Database
) -> None:
    stale = _published(theirs)

    def raised(publication: int) -> None:
        with theirs.write() as connection:
            publications.raise_exploration(connection, "drafter", True, publication=publication)

    async def story() -> None:
        async with following(url) as feed:
            wait = asyncio.create_task(feed.wait("drafter", FIRST, PATIENCE))
            await asyncio.sleep(0)
            await asyncio.to_thread(raised, 1)
            await asyncio.wait_for(wait, PATIENCE / 2)
            feed.apply(stale)
            found = feed.current("drafter")
            assert found is not None
            assert (found.edition, found.drafter.explores_more) == ((1, 1), True)
            await asyncio.to_thread(publish, theirs, [1.5] * 7)
            await asyncio.wait_for(feed.wait("drafter", (1, 1), PATIENCE), PATIENCE / 2)
            found = feed.current("drafter")
            assert found is not None
            assert (found.edition, found.drafter.explores_more) == ((2, 2), False)

    asyncio.run(story())


def test_who_is_behind_does_not_wait(url: str, theirs: Database) -> None:
    publish(theirs, [1.5] * 7)

    async def story() -> None:
        async with following(url) as feed:
            await asyncio.wait_for(feed.wait("drafter", FIRST, PATIENCE), PATIENCE / 2)

    asyncio.run(story())


def test_a_wait_ends_in_time(url: str, theirs: Database) -> None:
    async def story() -> None:
        async with following(url) as feed:
            started = time.monotonic()
            await feed.wait("drafter", FIRST, 0.1)
            assert time.monotonic() - started >= 0.09
            assert feed.waiting == 0

    asyncio.run(story())


def test_a_wait_ends_when_its_client_goes(url: str, theirs: Database) -> None:
    async def story() -> None:
        async with following(url) as feed:
            gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            wait = asyncio.create_task(feed.wait("drafter", FIRST, PATIENCE, until=gone))
            await asyncio.sleep(0)
            gone.set_result(None)
            await asyncio.wait_for(wait, PATIENCE / 2)
            assert feed.waiting == 0

    asyncio.run(story())


def test_a_release_lets_everybody_go_and_holds_nobody(url: str, theirs: Database) -> None:
    async def story() -> None:
        async with following(url) as feed:
            waits = [asyncio.create_task(feed.wait("drafter", FIRST, PATIENCE)) for _ in range(10)]
            await asyncio.sleep(0)
            feed.release()
            await asyncio.wait_for(asyncio.gather(*waits), PATIENCE / 2)
            await asyncio.wait_for(feed.wait("drafter", FIRST, PATIENCE), PATIENCE / 2)

    asyncio.run(story())


def test_an_unknown_drafter_is_looked_up_at_once(url: str, theirs: Database) -> None:
    async def story() -> None:
        async with following(url) as feed:
            await asyncio.to_thread(register, theirs, "late")
            found = await asyncio.gather(*(feed.find("late") for _ in range(20)))
            assert {entry.number for entry in found if entry is not None} == {1}
            assert await feed.find("nobody") is None

    asyncio.run(story())


def test_the_number_never_goes_back(url: str, theirs: Database) -> None:
    """Whatever comes late, or out of a database that was set back, is not taken."""
    first = _published(theirs)
    publish(theirs, [1.5] * 7)

    async def story() -> None:
        async with following(url) as feed:
            assert number(feed) == 2
            feed.apply(first)
            assert number(feed) == 2

    asyncio.run(story())


def test_what_this_process_publishes_is_there_at_once(url: str, theirs: Database) -> None:
    async def story() -> None:
        async with following(url) as feed:
            wait = asyncio.create_task(feed.wait("drafter", FIRST, PATIENCE))
            await asyncio.sleep(0)
            await asyncio.to_thread(publish, theirs, [1.5] * 7)
            feed.apply(await asyncio.to_thread(_published, theirs))
            assert number(feed) == 2
            await asyncio.wait_for(wait, PATIENCE / 2)

    asyncio.run(story())


def test_an_outage_is_seen_survived_and_over(
    url: str, theirs: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = publications.editions
    away = False

    def sometimes(connection: object) -> dict[str, publications.Edition]:
        if away:
            raise StoreUnavailableError("away")
        return really(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(publications, "editions", sometimes)

    async def reaches(feed: PublicationFeed, state: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            while feed.reachable is not state:
                feed.poke()
                await asyncio.sleep(0.01)

    async def story() -> None:
        nonlocal away
        async with following(url) as feed:
            away = True
            await reaches(feed, False)
            assert number(feed) == 1
            assert feed.alive
            with pytest.raises(StoreUnavailableError):
                await feed.find("nobody")
            publish(theirs, [1.5] * 7)
            away = False
            await reaches(feed, True)
            assert number(feed) == 2

    asyncio.run(story())


@pytest.mark.slow
def test_a_restart_of_postgresql_is_survived() -> None:
    """A real one: every connection is gone, the one that listens too."""
    if "postgresql" not in dialects():
        return  # left out by the variable that dialects() reads
    server = shared_server()
    name = f"restart_{time.monotonic_ns()}"
    address = server.create_database(name)
    theirs = Database.open(address)
    upgrade(theirs)
    register(theirs)

    async def story() -> None:
        async with following(address) as feed:
            wait = asyncio.create_task(feed.wait("drafter", FIRST, PATIENCE))
            await asyncio.to_thread(server.restart)
            assert number(feed) == 1
            theirs.check()
            await asyncio.to_thread(publish, theirs, [1.5] * 7)
            await asyncio.wait_for(wait, PATIENCE)
            assert number(feed) == 2
            assert feed.alive

    asyncio.run(story())
    theirs.close()
    server.drop_database(name)


def test_it_does_not_start_on_a_database_that_is_away(tmp_path: Path) -> None:
    database = Database.open(f"sqlite:///{tmp_path / 'without-tables.db'}")

    async def story() -> None:
        feed = PublicationFeed(database)
        with pytest.raises(StoreUnavailableError):
            await feed.start()
        assert not feed.alive

    asyncio.run(story())
    database.close()


def _published(database: Database) -> Published:
    with database.read() as connection:
        return Published(
            drafters.get(connection, "drafter"),
            publications.current_publication(connection, "drafter"),
        )
