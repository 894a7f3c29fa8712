"""The writer: groups, errors, outages, shutdown. On SQLite and on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, event
from structlog.testing import capture_logs

from api.ingest_queue import IngestQueue
from api.pending_bytes import QueueFullError
from api.problems import ProblemError
from monitoring.store.database import Database
from monitoring.store.errors import (
    ConflictError,
    NotFoundError,
    StoreBusyError,
    StoreFullError,
    StoreUnavailableError,
)
from monitoring.store.telemetry import batches_after, counters
from tests.monitoring.store.conftest import (  # noqa: F401 - fixtures are found by their names
    database,
    database_url,
    dialect,
    sqlite_template,
    sqlite_url,
)
from tests.monitoring.store.store_fixtures import batch, registered

T = TypeVar("T")
MIB = 2**20


def run(
    store: Database, work: Callable[[IngestQueue], Coroutine[Any, Any, T]], **options: Any
) -> T:
    """What ``work`` returns; the queue is closed after it."""

    async def whole() -> T:
        queue = IngestQueue(store, **{"max_pending_bytes": 64 * MIB, "max_wait_ms": 1} | options)
        try:
            async with asyncio.timeout(60):
                return await work(queue)
        finally:
            await queue.close(10.0)

    return asyncio.run(whole())


def stored(store: Database, name: str = "code") -> list[bytes]:
    with store.read() as connection:
        return [found.payload for found in batches_after(connection, name, 0, limit=10_000)]


def count_transactions(store: Database) -> list[float]:
    commits: list[float] = []
    event.listen(store.engine, "commit", lambda _: commits.append(time.monotonic()))
    return commits


@pytest.mark.slow
def test_a_batch_is_durable_when_its_caller_hears(database: Database) -> None:  # noqa: F811
    registered(database)

    async def work(queue: IngestQueue) -> list[int]:
        first = await queue.submit(batch(payload=b"one"))
        assert stored(database) == [b"one"]
        second = await queue.submit(batch(payload=b"two"))
        assert stored(database) == [b"one", b"two"]
        assert queue.pending.used == 0
        return [first, second]

    ids = run(database, work)
    assert ids[0] < ids[1]


def test_what_waits_goes_into_one_transaction(database: Database) -> None:  # noqa: F811
    registered(database)
    registered(database, "chat")
    commits = count_transactions(database)

    async def work(queue: IngestQueue) -> list[int]:
        names = ["code", "chat"] * 100
        payloads = [f"{k:03d}".encode() for k in range(200)]
        submitted = [
            queue.submit(batch(name, payload=payload))
            for name, payload in zip(names, payloads, strict=True)
        ]
        return await asyncio.gather(*submitted)

    ids = run(database, work)
    assert len(set(ids)) == 200
    assert len(commits) <= 10
    # In the order in which they were handed over.
    assert stored(database) == [f"{k:03d}".encode() for k in range(0, 200, 2)]
    assert stored(database, "chat") == [f"{k:03d}".encode() for k in range(1, 200, 2)]


def test_counters_rise_with_their_batch(database: Database) -> None:  # noqa: F811
    registered(database)

    async def work(queue: IngestQueue) -> None:
        await asyncio.gather(
            queue.submit(batch(), rejected=3, duplicates=2),
            queue.count_rejects("code", 10),
            queue.count_rejects("code", 1, 1),
        )

    run(database, work)
    with database.read() as connection:
        found = counters(connection, "code")
    assert (found.rows, found.rejected, found.duplicates) == (2, 14, 3)


def test_one_refused_batch_does_not_take_the_others_with_it(
    database: Database,  # noqa: F811
) -> None:
    registered(database)

    async def work(queue: IngestQueue) -> list[Any]:
        await queue.submit(batch(key="k"))
        submitted = [queue.submit(batch(payload=f"{k}".encode())) for k in range(5)]
        submitted.insert(2, queue.submit(batch(key="k")))
        submitted.insert(4, queue.submit(batch("nobody")))
        return await asyncio.gather(*submitted, return_exceptions=True)

    outcomes = run(database, work)
    assert isinstance(outcomes[2], ConflictError)
    assert isinstance(outcomes[4], NotFoundError)
    assert all(isinstance(outcomes[k], int) for k in (0, 1, 3, 5, 6))
    assert stored(database)[1:] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_fault_of_the_code_reaches_its_caller_only(database: Database) -> None:  # noqa: F811
    registered(database)

    async def work(queue: IngestQueue) -> list[Any]:
        broken: Any = batch(payload="no bytes")
        submitted = [queue.submit(batch()), queue.submit(broken), queue.submit(batch())]
        outcomes = await asyncio.gather(*submitted, return_exceptions=True)
        await queue.submit(batch())
        return outcomes

    with capture_logs():  # printing a traceback with all its locals takes half a minute
        outcomes = run(database, work)
    assert [isinstance(outcome, Exception) for outcome in outcomes] == [False, True, False]
    assert len(stored(database)) == 3


def test_a_cancelled_caller_changes_nothing(database: Database) -> None:  # noqa: F811
    registered(database)

    async def work(queue: IngestQueue) -> None:
        with _stopped_writer(queue) as release:
            task = asyncio.ensure_future(queue.submit(batch(payload=b"orphan")))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release()
        await queue.submit(batch(payload=b"next"))
        assert queue.pending.used == 0

    run(database, work)
    assert stored(database) == [b"orphan", b"next"]


@contextmanager
def _stopped_writer(queue: IngestQueue) -> Iterator[Callable[[], None]]:
    """Hold the writer before its next group; the given function lets it go on."""
    gate = threading.Event()
    next_group = queue._next_group

    def gated(alone: bool) -> Any:
        group = next_group(alone)
        gate.wait(30)
        return group

    queue._next_group = gated  # type: ignore[method-assign]
    try:
        yield gate.set
    finally:
        gate.set()


def test_work_that_is_seen_through_goes_on_without_its_caller(
    database: Database,  # noqa: F811
) -> None:
    registered(database)

    async def work(queue: IngestQueue) -> list[str]:
        ended: list[str] = []
        go = asyncio.Event()

        async def request() -> int:
            await go.wait()
            return await queue.submit(batch(payload=b"seen through"))

        duties = ExitStack()
        duties.callback(ended.append, "ended")
        task = asyncio.ensure_future(queue.see_through(request(), duties))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == []
        go.set()
        while not ended:
            await asyncio.sleep(0.01)
        return ended

    assert run(database, work) == ["ended"]
    assert stored(database) == [b"seen through"]


def test_more_than_memory_may_hold_is_refused(database: Database) -> None:  # noqa: F811
    registered(database)

    async def work(queue: IngestQueue) -> list[int]:
        with _stopped_writer(queue) as release:
            futures = [queue.put(batch(payload=bytes(400), answer=b"")) for _ in range(2)]
            with pytest.raises(QueueFullError) as caught:
                queue.put(batch(payload=bytes(400), answer=b""))
            assert 1 <= int(caught.value.headers["Retry-After"]) <= 30
            assert queue.pending.used == 800
            release()
            ids = await asyncio.gather(*futures)
        ids.append(await queue.submit(batch(payload=bytes(400), answer=b"")))
        return ids

    assert len(run(database, work, max_pending_bytes=1000)) == 3


def test_reserved_bytes_shrink_to_what_waits(database: Database) -> None:  # noqa: F811
    registered(database)

    async def work(queue: IngestQueue) -> None:
        with queue.pending.reserve() as held:
            held.grow(900)
            with _stopped_writer(queue) as release:
                future = queue.put(batch(payload=bytes(100), answer=bytes(20)), reservation=held)
                assert (queue.pending.used, held.size) == (120, 0)
                release()
                await future
        assert queue.pending.used == 0

    run(database, work, max_pending_bytes=1000)


def test_closing_commits_what_was_handed_over(database: Database) -> None:  # noqa: F811
    registered(database)

    async def whole() -> None:
        queue = IngestQueue(database, max_pending_bytes=MIB, max_wait_ms=1000)
        futures = [queue.put(batch(payload=f"{k}".encode())) for k in range(50)]
        assert await queue.close(30.0)
        assert all(future.done() for future in futures)
        for refused in (queue.submit(batch()), queue.count_rejects("code", 1)):
            with pytest.raises(ProblemError) as caught:
                await refused
            assert caught.value.kind.slug == "shutting-down"

    asyncio.run(whole())
    assert len(stored(database)) == 50


def test_closing_without_a_batch_ends_at_once(database: Database) -> None:  # noqa: F811
    async def whole() -> bool:
        return await IngestQueue(database, max_pending_bytes=MIB).close(5.0)

    assert asyncio.run(whole())


# Outages -------------------------------------------------------------------------------------


def test_a_locked_database_is_said_and_survived(sqlite_url: str, tmp_path: Path) -> None:  # noqa: F811
    store = Database.open(sqlite_url, busy_seconds=0.1)
    registered(store)

    async def work(queue: IngestQueue) -> None:
        holder = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        submitted = [queue.submit(batch(payload=b"refused")) for _ in range(3)]
        outcomes = await asyncio.gather(*submitted, return_exceptions=True)
        assert all(isinstance(outcome, StoreBusyError) for outcome in outcomes)
        holder.execute("ROLLBACK")
        holder.close()
        await queue.submit(batch(payload=b"after"))

    run(store, work)
    assert stored(store) == [b"after"]
    store.close()


def test_a_full_disk_is_said_and_survived(sqlite_url: str) -> None:  # noqa: F811
    """A limit on pages stands for the disk; it is lifted while the queue runs."""
    store = Database.open(sqlite_url)
    registered(store)
    limit = {"pages": 0}

    def narrow(connection: Connection) -> None:
        if limit["pages"]:
            connection.exec_driver_sql(f"PRAGMA max_page_count={limit['pages']}")

    event.listen(store.engine, "begin", narrow, insert=True)

    async def work(queue: IngestQueue) -> None:
        await queue.submit(batch(payload=b"before"))
        limit["pages"] = 1  # SQLite takes the present size instead
        outcomes = await asyncio.gather(
            *[queue.submit(batch(payload=bytes(MIB))) for _ in range(3)], return_exceptions=True
        )
        assert all(isinstance(outcome, StoreFullError) for outcome in outcomes)
        limit["pages"] = 2**30
        await queue.submit(batch(payload=b"after"))

    run(store, work)
    assert stored(store) == [b"before", b"after"]
    store.close()


class LosesConnection(Database):
    """Loses its connection while the next commit is under way, before or after it counts."""

    lose: str = ""

    def run(self, work: Callable[[Connection], T], *, attempts: int = 1) -> T:
        how, self.lose = self.lose, ""
        if how != "before":
            result = super().run(work, attempts=attempts)
        if how:
            raise StoreUnavailableError("connection lost", outcome_unknown=True)
        return result


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_commit_of_unknown_outcome_counts_once(sqlite_url: str, when: str) -> None:  # noqa: F811
    """With a key the batch is sent again, and the database itself tells whether it was there."""
    store = LosesConnection.open(sqlite_url)
    registered(store)

    async def work(queue: IngestQueue) -> list[Any]:
        await queue.submit(batch(payload=b"first"))
        store.lose = when
        submitted = [
            queue.submit(batch(payload=b"a", key="a")),
            queue.submit(batch(payload=b"b")),
            queue.submit(batch(payload=b"c", key="c")),
        ]
        with _stopped_writer(queue) as release:
            gathered = asyncio.gather(*submitted, return_exceptions=True)
            await asyncio.sleep(0)
            release()
            return list(await gathered)

    keyed, unkeyed, other = run(store, work, max_wait_ms=0)
    payloads = stored(store)
    assert payloads.count(b"a") == payloads.count(b"c") == 1
    assert isinstance(unkeyed, StoreUnavailableError)
    if when == "after":
        # The caller finds the stored answer.
        assert isinstance(keyed, ConflictError)
        assert isinstance(other, ConflictError)
    else:
        assert isinstance(keyed, int)
        assert isinstance(other, int)
    store.close()


def test_a_lone_sender_never_waits_for_others(sqlite_url: str) -> None:  # noqa: F811
    store = Database.open(sqlite_url)
    registered(store)

    async def work(queue: IngestQueue) -> float:
        await queue.submit(batch())
        started = time.monotonic()
        for _ in range(3):
            await queue.submit(batch())
        return time.monotonic() - started

    assert run(store, work, max_wait_ms=1000) < 3.0
    store.close()


def test_a_large_body_does_not_keep_small_ones_waiting(
    database: Database,  # noqa: F811
) -> None:
    ready = threading.Event()

    async def story(queue: IngestQueue) -> bool:
        large = asyncio.ensure_future(queue.prepare(ready.wait, 30.0, size=64 * MIB))
        for _ in range(3):
            assert await asyncio.wait_for(queue.prepare(len, b"abc", size=MIB), 10.0) == 3
        ready.set()
        return await large

    assert run(database, story)
