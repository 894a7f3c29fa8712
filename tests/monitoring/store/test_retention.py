"""Retention: oldest first, by age and by size, and never what a running job reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, delete, func, insert, select, update

from monitoring.store import engines, events, jobs, retention, tables
from monitoring.store.database import Database
from monitoring.store.engines import EngineSighting
from monitoring.store.telemetry import batches_after, counters, find_answer, store_batches
from tests.monitoring.store.store_fixtures import START, ManualClock, batch, registered

DAY = 24 * 3600.0


def store(database: Database, *ages: float, drafter: str = "code", size: int = 10) -> list[int]:
    """Batches of ten bytes, so many seconds old."""
    with database.read() as connection:
        now = database.now(connection)
    given = [batch(drafter, payload=b"x" * size, received_at=now - age) for age in ages]
    return database.run(lambda connection: store_batches(connection, given))


def kept(database: Database, drafter: str = "code") -> list[int]:
    with database.read() as connection:
        return [found.id for found in batches_after(connection, drafter, 0, limit=100_000)]


def apply(
    database: Database, age: float | None = None, size: int | None = None
) -> retention.Retained:
    return retention.apply_retention(database, max_age_seconds=age, max_bytes=size)


def leased(database: Database, drafter: str = "code") -> jobs.Job:
    def work(connection: Any) -> jobs.Job | None:
        jobs.enqueue(connection, drafter, "report", {}, actor="tests")
        return jobs.lease_next(connection, database, "worker")

    job = database.run(work)
    assert job is not None
    return job


def test_by_age(database: Database) -> None:
    registered(database)
    ids = store(database, 100, 90, 30, 1)
    removed = apply(database, age=60)
    assert (removed.batches, removed.rows, removed.bytes, removed.stored_bytes) == (2, 4, 20, 20)
    assert kept(database) == ids[2:]
    assert apply(database, age=60) == retention.Retained(stored_bytes=20)


def test_by_size_oldest_first_over_all_drafters(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    first = store(database, 9, 8)
    other = store(database, 7, 6, drafter="chat")
    last = store(database, 5, 4)
    removed = apply(database, size=35)
    assert (removed.batches, removed.stored_bytes) == (3, 30)
    assert kept(database) == last
    assert kept(database, "chat") == other[1:]
    assert first[0] < other[0] < last[0]


def test_no_limit_removes_nothing(database: Database) -> None:
    registered(database)
    ids = store(database, 10 * 365 * DAY, 1)
    assert apply(database).batches == 0
    assert apply(database, age=20 * 365 * DAY, size=20).batches == 0
    assert kept(database) == ids


def test_totals_stay_and_what_is_stored_falls(database: Database) -> None:
    registered(database)
    store(database, 100, 1)
    apply(database, age=60)
    with database.read() as connection:
        totals = counters(connection, "code")
    assert (totals.rows, totals.batches, totals.bytes) == (4, 2, 20)
    assert (totals.stored_rows, totals.stored_bytes) == (2, 10)


def test_ids_are_not_given_again(database: Database) -> None:
    registered(database)
    (old,) = store(database, 100)
    apply(database, size=0)
    assert kept(database) == []
    (new,) = store(database, 1)
    assert new > old


def test_many_batches_in_small_transactions(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BATCHES_A_TRANSACTION", 7)
    registered(database)
    ids = store(database, *[100.0] * 25, *[1.0] * 3)
    assert apply(database, age=60, size=1000).batches == 25
    assert kept(database) == ids[25:]


def test_size_and_age_together(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCHES_A_TRANSACTION", 4)
    registered(database)
    ids = store(database, *[100.0] * 6, *[1.0] * 6)
    assert apply(database, age=60, size=40).stored_bytes == 40
    assert kept(database) == ids[8:]


def test_running_job_keeps_what_it_may_read(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    ids = store(database, 100, 90)
    store(database, 80, 70, drafter="chat")
    job = leased(database)
    assert apply(database, age=60, size=0).batches == 2
    assert kept(database) == ids
    assert kept(database, "chat") == []
    database.run(lambda connection: jobs.finish(connection, job, "succeeded"))
    assert apply(database, age=60).batches == 2


def test_job_that_said_what_it_reads_keeps_only_that(database: Database) -> None:
    registered(database)
    ids = store(database, 100, 90, 80)
    job = leased(database)
    database.run(lambda connection: jobs.declare_reads(connection, database, job, ids[1]))
    assert apply(database, size=0).batches == 1
    assert kept(database) == ids[1:]


def test_job_whose_owner_vanished_keeps_nothing(database: Database) -> None:
    registered(database)
    store(database, 100)
    leased(database)
    ended = update(tables.jobs).values(lease_until=1.0)
    database.run(lambda connection: connection.execute(ended))
    assert apply(database, age=60).batches == 1


@pytest.fixture
def aged(sqlite_url: str) -> Iterator[tuple[Database, ManualClock]]:
    clock = ManualClock()
    database = Database.open(sqlite_url, clock=clock)
    registered(database)
    yield database, clock
    database.close()


def test_old_answers_and_old_jobs_go(aged: tuple[Database, ManualClock]) -> None:
    database, clock = aged
    given = [batch(key="k")]
    database.run(lambda connection: store_batches(connection, given))
    job = leased(database)
    database.run(lambda connection: jobs.finish(connection, job, "failed"))
    clock.seconds = START + DAY - 1
    assert apply(database) == retention.Retained(stored_bytes=8)
    with database.read() as connection:
        assert find_answer(connection, "code", "token", "k") is not None
    clock.seconds = START + DAY
    assert (apply(database).answers, apply(database).answers) == (1, 0)
    clock.seconds = START + 30 * DAY
    assert apply(database).jobs == 1
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(tables.jobs)).scalar() == 0


def test_clock_set_back_removes_nothing_young(aged: tuple[Database, ManualClock]) -> None:
    database, clock = aged
    ids = store(database, 1)
    clock.seconds = START - 365 * DAY
    assert apply(database, age=60).batches == 0
    assert kept(database) == ids


def test_sqlite_file_shrinks(sqlite_url: str, tmp_path: Path) -> None:
    database = Database.open(sqlite_url)
    registered(database)
    store(database, *range(60, 0, -1), size=50_000)
    database.close()  # the log goes into the file
    full = (tmp_path / "store.db").stat().st_size
    apply(database, size=0)
    database.close()
    assert (tmp_path / "store.db").stat().st_size < full - 2_500_000


def history(connection: Connection) -> tuple[list[str], list[str]]:
    """Kinds of the events, and the engines, that are left."""
    kinds = select(tables.events.c.kind).order_by(tables.events.c.id)
    names = select(tables.engines.c.engine).order_by(tables.engines.c.engine)
    return list(connection.execute(kinds).scalars()), list(connection.execute(names).scalars())


def test_old_history_goes_and_what_still_holds_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_EVENTS_A_TRANSACTION", 2)
    registered(database)

    def fill(connection: Connection) -> None:
        now = database.now(connection)
        for number in range(5):
            events.open_event(connection, f"old-notice-{number}", "info", "It happened.")
        for kind in ("open", "acknowledged", "resolved"):
            event = events.open_event(connection, kind, "warning", "It holds.", dedup_key=kind)
            if kind == "acknowledged":
                events.acknowledge(connection, event.id, "tests")
        events.resolve(connection, "resolved")
        seen = [("old", now - 91 * DAY), ("young", now - 89 * DAY)]
        engines.record_sightings(
            connection,
            [EngineSighting("code", name, None, None, None, None, at) for name, at in seen],
        )
        named = tables.alert_notices
        connection.execute(delete(named).where(named.c.event > 0))
        columns = tables.events.c
        aged = {name: columns[name] - 91 * DAY for name in ("opened_at", "resolved_at")}
        connection.execute(update(tables.events).values(**aged))
        referred = events.open_event(connection, "referred", "info", "Somebody is being told.")
        connection.execute(update(tables.events).where(columns.id == referred.id).values(**aged))
        if connection.execute(select(func.count()).select_from(named)).scalar() == 0:
            values = {"event": referred.id, "notice": "opened", "severity": "info"}
            values |= {"created_at": now, "message": "{}"}
            connection.execute(insert(named).values(**values))
        events.open_event(connection, "young-notice", "info", "It just happened.")

    database.run(fill)
    assert apply(database, age=1).events == 0, "no limit was given"
    removed = retention.apply_retention(
        database, max_age_seconds=None, max_bytes=None, history_seconds=90 * DAY
    )
    assert (removed.events, removed.engines) == (6, 1)
    with database.read() as connection:
        left = ["open", "acknowledged", "referred", "young-notice"]
        assert history(connection) == (left, ["young"])
