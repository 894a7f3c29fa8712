"""Batches are stored whole, once, and in an order that a reader can follow."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from calib.errors import InvalidInputError
from monitoring.store import telemetry
from monitoring.store.database import Database
from monitoring.store.errors import ConflictError, NotFoundError
from tests.monitoring.store.store_fixtures import (
    START,
    ManualClock,
    batch,
    idempotency,
    only_postgresql,
    registered,
)
from tests.monitoring.store.store_processes import run


def store(database: Database, *batches: telemetry.BatchToStore) -> list[int]:
    return database.run(lambda connection: telemetry.store_batches(connection, batches))


def stored(database: Database, drafter: str = "code") -> list[telemetry.Batch]:
    with database.read() as connection:
        return telemetry.batches_after(connection, drafter, 0)


def test_group_is_stored_in_order_and_counted(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    given = [
        batch("code", payload=b"\x00one", rows=3, excluded=1, received_at=START + 1),
        batch("chat", payload=b"two", engine=None, rows=5),
        batch("code", payload=b"three", rows=4, received_at=START + 2),
    ]
    ids = store(database, *given)
    assert ids == sorted(ids)
    code = stored(database)
    assert [(found.id, found.payload, found.rows) for found in code] == [
        (ids[0], b"\x00one", 3),
        (ids[2], b"three", 4),
    ]
    assert (code[0].engine, code[0].received_at, code[0].drafter) == ("engine-1", START + 1, "code")
    assert stored(database, "chat")[0].engine is None
    with database.read() as connection:
        totals = telemetry.counters(connection, "code")
    assert totals == telemetry.TelemetryCounters(
        rows=7,
        batches=2,
        bytes=9,
        excluded=1,
        rejected=0,
        duplicates=0,
        last_received_at=START + 2,
        stored_rows=7,
        stored_bytes=9,
    )


def test_large_group_keeps_the_order_of_its_ids(database: Database) -> None:
    registered(database)
    given = [batch(payload=str(number).encode()) for number in range(1500)]
    ids = store(database, *given)
    assert len(set(ids)) == 1500
    with database.read() as connection:
        found = telemetry.batches_after(connection, "code", 0, limit=2000)
    assert [item.id for item in found] == ids
    assert [item.payload for item in found] == [item.payload for item in given]


def test_nothing_to_store(database: Database) -> None:
    assert store(database) == []


@pytest.mark.parametrize("bad", ["unknown drafter", "used key", "impossible engine"])
def test_group_is_atomic(database: Database, bad: str) -> None:
    registered(database)
    store(database, batch(key="used"))
    wrong, error = {
        "unknown drafter": (batch("none"), NotFoundError),
        "used key": (batch(key="used"), ConflictError),
        "impossible engine": (batch(engine="a\0b"), InvalidInputError),
    }[bad]
    with pytest.raises(error):
        store(database, batch(key="fresh"), wrong, batch())
    assert len(stored(database)) == 1
    with database.read() as connection:
        assert telemetry.counters(connection, "code").rows == 2
        assert telemetry.find_answer(connection, "code", "token", "fresh") is None


def test_key_is_stored_once_and_its_answer_found(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    now = telemetry_time(database)
    store(database, batch(key="k", answer=b"\x00first", received_at=now))
    with pytest.raises(ConflictError) as caught:
        store(database, batch(key="k", received_at=now))
    assert (caught.value.kind, caught.value.identifier) == ("telemetry batch", "k")
    # Scoped to drafter and token.
    store(database, batch("chat", key="k", received_at=now))
    store(database, batch(idempotency=idempotency("k", token="other"), received_at=now))
    with database.read() as connection:
        answer = telemetry.find_answer(connection, "code", "token", "k")
        assert telemetry.find_answer(connection, "code", "token", "unknown") is None
    assert answer == telemetry.StoredAnswer(idempotency("k").body_sha256, b"\x00first", now)


def telemetry_time(database: Database) -> float:
    with database.read() as connection:
        return database.now(connection)


def test_same_key_twice_in_one_group(database: Database) -> None:
    registered(database)
    with pytest.raises(ConflictError, match="'k'"):
        store(database, batch(key="k"), batch(key="k"))
    assert stored(database) == []


def test_key_may_be_used_again_after_24_hours(sqlite_url: str) -> None:
    clock = ManualClock()
    database = Database.open(sqlite_url, clock=clock)
    registered(database)
    store(database, batch(key="k", answer=b"old"))
    clock.seconds = START + 24 * 3600 - 1
    with database.read() as connection:
        assert telemetry.find_answer(connection, "code", "token", "k") is not None
    with pytest.raises(ConflictError):
        store(database, batch(key="k", received_at=clock.seconds))
    clock.seconds = START + 24 * 3600
    with database.read() as connection:
        assert telemetry.find_answer(connection, "code", "token", "k") is None
    store(database, batch(key="k", answer=b"new", received_at=clock.seconds))
    with database.read() as connection:
        answer = telemetry.find_answer(connection, "code", "token", "k")
    assert answer is not None
    assert answer.answer == b"new"
    database.close()


def test_reading_on_from_where_one_stopped(database: Database) -> None:
    registered(database)
    ids = store(database, *(batch(payload=b"x" * size) for size in (10, 10, 30, 5)))
    with database.read() as connection:

        def after(last: int, **limits: int) -> list[int]:
            found = telemetry.batches_after(connection, "code", last, **limits)
            return [item.id for item in found]

        assert after(0, limit_bytes=20) == ids[:2]
        assert after(ids[1], limit_bytes=20) == [ids[2]]  # larger than the limit, yet it comes
        assert after(ids[2], limit_bytes=20) == [ids[3]]
        assert after(ids[3]) == []
        assert after(0, limit=3) == ids[:3]
        assert telemetry.batches_after(connection, "none", 0) == []


def test_newest_batches_hold_enough_rows_oldest_first(database: Database) -> None:
    registered(database)
    ids = store(database, *(batch(rows=rows) for rows in (5, 3, 4)))
    with database.read() as connection:

        def newest(rows: int) -> list[int]:
            return [item.id for item in telemetry.newest_batches(connection, "code", rows=rows)]

        assert newest(1) == ids[2:]
        assert newest(4) == ids[2:]
        assert newest(5) == ids[1:]
        assert newest(8) == ids
        assert newest(1000) == ids
        assert telemetry.newest_batches(connection, "none", rows=1) == []


def test_rejects_raise_their_counters_alone(database: Database) -> None:
    registered(database)
    for _ in range(2):
        database.run(lambda connection: telemetry.count_rejects(connection, "code", 3, 4))
    with database.read() as connection:
        totals = telemetry.counters(connection, "code")
        assert (totals.rejected, totals.duplicates, totals.rows, totals.batches) == (6, 8, 0, 0)
        with pytest.raises(NotFoundError):
            telemetry.counters(connection, "none")
    with pytest.raises(NotFoundError):
        database.run(lambda connection: telemetry.count_rejects(connection, "none", 1, 1))


@pytest.mark.slow
def test_same_key_from_several_processes_is_stored_once(database: Database) -> None:
    registered(database)
    said = run("repeats", database.url, count=4, keys=10)
    assert sorted(line["key"] for line in said) == sorted(f"key-{n}" for n in range(10))
    assert len(stored(database)) == 10
    with database.read() as connection:
        assert telemetry.counters(connection, "code").batches == 10


def write_many(database: Database, count: int, **options: Any) -> list[dict[str, Any]]:
    registered(database)
    said = run("writes", database.url, count=8, **options)
    assert len(said) == 8 * count
    assert len({line["id"] for line in said}) == 8 * count
    assert {item.engine for item in stored(database)} <= {line["engine"] for line in said}
    with database.read() as connection:
        totals = telemetry.counters(connection, "code")
    assert totals.rows == totals.stored_rows == 4000
    assert totals.batches == 8 * count
    return said


@pytest.mark.slow
def test_r74_8_writers_of_500_rows(sqlite_url: str) -> None:
    """4,000 rows, and no lock error in any process: ``run`` fails when a process does."""
    write_many(Database.open(sqlite_url), 5, each=5, rows=100)


@pytest.mark.slow
def test_r74_8_writers_of_500_rows_in_many_commits(database: Database) -> None:
    write_many(database, 100, each=100, rows=5)


@only_postgresql
def test_ids_become_visible_in_order(database: Database) -> None:
    """The writer that drew the smaller id commits later, yet no reader sees the larger first."""
    registered(database)
    drawn, seen = threading.Event(), threading.Event()
    order: list[int] = []

    def slow() -> None:
        with database.write() as connection:
            order.extend(telemetry.store_batches(connection, [batch(engine="slow")]))
            drawn.set()
            seen.wait(30)

    def fast() -> None:
        order.extend(store(database, batch(engine="fast")))

    first, second = threading.Thread(target=slow), threading.Thread(target=fast)
    first.start()
    assert drawn.wait(30)
    second.start()
    second.join(0.3)
    assert stored(database) == []  # the fast one waits, so its larger id is not visible yet
    seen.set()
    first.join(30)
    second.join(30)
    assert [item.engine for item in stored(database)] == ["slow", "fast"]
    assert order == sorted(order)
