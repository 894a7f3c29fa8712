"""Leases: one owner at a time, fenced, and by a clock that nobody can set back."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, update

from calib.errors import InvalidInputError
from monitoring.store import jobs, tables
from monitoring.store.clock import SteadyClock
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError, NotFoundError, StoreError
from tests.monitoring.store.store_fixtures import START, ManualClock, registered
from tests.monitoring.store.store_processes import run


def enqueue(database: Database, drafter: str = "code", **options: Any) -> jobs.Job:
    return database.run(
        lambda connection: jobs.enqueue(
            connection, drafter, "recalibration", options, actor="tests"
        )
    )


def lease(database: Database, owner: str = "a", **options: Any) -> jobs.Job | None:
    return database.run(lambda connection: jobs.lease_next(connection, database, owner, **options))


def leased(database: Database, owner: str = "a", **options: Any) -> jobs.Job:
    job = lease(database, owner, **options)
    assert job is not None
    return job


def expire(database: Database) -> None:
    """Let every lease end, as if its owner had been silent."""
    ended = update(tables.jobs).values(lease_until=1.0)
    database.run(lambda connection: connection.execute(ended))


def check(database: Database, job: jobs.Job) -> None:
    database.run(lambda connection: jobs.check_fence(connection, database, job))


def finish(database: Database, job: jobs.Job) -> jobs.Job:
    return database.run(lambda connection: jobs.finish(connection, job, "succeeded", {"n": 1}))


def test_life_of_a_job(database: Database) -> None:
    registered(database)
    queued = enqueue(database, rows=100)
    assert (queued.status, queued.attempts, queued.fencing) == ("queued", 0, 0)
    assert (queued.options, queued.kind, queued.drafter) == ({"rows": 100}, "recalibration", "code")
    job = leased(database, "worker-1")
    assert (job.id, job.status, job.attempts, job.fencing) == (queued.id, "running", 1, 1)
    assert job.lease_owner == "worker-1"
    assert job.started_at is not None
    assert job.lease_until is not None
    assert 0 < job.lease_until - job.started_at <= 31
    with database.write() as connection:
        jobs.check_fence(connection, database, job)
        done = jobs.finish(connection, job, "refused", {"status": "not_better"}, {"why": "n"})
    assert (done.status, done.result, done.error) == (
        "refused",
        {"status": "not_better"},
        {"why": "n"},
    )
    assert (done.lease_owner, done.lease_until) == (None, None)
    assert done.finished_at is not None
    with database.read() as connection:
        assert jobs.get_job(connection, job.id) == done
        with pytest.raises(NotFoundError, match="no job 'x'"):
            jobs.get_job(connection, "x")
    assert lease(database) is None


def test_equal_job_that_waits_is_not_doubled(database: Database) -> None:
    registered(database)
    first = enqueue(database, rows=100, method="sts")
    assert enqueue(database, method="sts", rows=100) == first
    assert enqueue(database, rows=101).id != first.id
    leased(database)
    assert enqueue(database, rows=100, method="sts").id != first.id  # it runs on older rows


def test_impossible_jobs(database: Database) -> None:
    registered(database)
    with pytest.raises(NotFoundError, match="no drafter 'none'"):
        enqueue(database, "none")
    with database.write() as connection:
        with pytest.raises(InvalidInputError, match="kind: got 'other'"):
            jobs.enqueue(connection, "code", "other", {}, actor="tests")  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError):
            jobs.enqueue(connection, "code", "report", {"x": float("nan")}, actor="tests")
    enqueue(database)
    job = leased(database)
    with database.write() as connection, pytest.raises(InvalidInputError, match="status"):
        jobs.finish(connection, job, "running")  # type: ignore[arg-type]


def test_one_job_per_drafter_at_a_time_oldest_first(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    first, second = enqueue(database, n=1), enqueue(database, n=2)
    other = enqueue(database, "chat", n=3)
    assert leased(database, "a").id == first.id
    assert leased(database, "b").id == other.id
    assert lease(database, "c") is None
    with database.read() as connection:
        job = jobs.get_job(connection, first.id)
    finish(database, job)
    assert leased(database, "c").id == second.id


def test_database_refuses_a_second_running_job(database: Database) -> None:
    registered(database)
    enqueue(database, n=1)
    enqueue(database, n=2)
    with pytest.raises(StoreError, match="constraint"):
        database.run(lambda c: c.execute(update(tables.jobs).values(status="running")))


def test_expired_lease_is_taken_over_and_the_old_owner_refused(database: Database) -> None:
    registered(database)
    enqueue(database)
    old = leased(database, "a")
    assert lease(database, "b") is None
    expire(database)
    new = leased(database, "b")
    assert (new.id, new.fencing, new.attempts, new.lease_owner) == (old.id, 2, 2, "b")
    assert new.started_at == old.started_at
    check(database, new)
    for attempt in (
        lambda: check(database, old),
        lambda: finish(database, old),
        lambda: database.run(lambda connection: jobs.heartbeat(connection, database, old)),
        lambda: database.run(lambda connection: jobs.release(connection, old)),
        lambda: database.run(lambda c: jobs.declare_reads(c, database, old, 1)),
    ):
        with pytest.raises(LeaseLostError, match=old.id):
            attempt()
    assert finish(database, new).status == "succeeded"


def test_refused_fence_takes_the_work_with_it(database: Database) -> None:
    registered(database)
    enqueue(database)
    old = leased(database, "a")
    expire(database)

    def commit(connection: Connection) -> None:
        jobs.enqueue(connection, "code", "report", {}, actor="tests")
        jobs.check_fence(connection, database, old)

    with pytest.raises(LeaseLostError):
        database.run(commit)
    with database.read() as connection:
        assert [job.kind for job in jobs.list_jobs(connection)] == ["recalibration"]


@pytest.mark.slow
def test_heartbeat_makes_the_lease_last(database: Database) -> None:
    registered(database)
    enqueue(database)
    job = leased(database, seconds=5)
    beaten = database.run(lambda c: jobs.heartbeat(c, database, job, seconds=60))
    assert job.lease_until is not None
    assert beaten.lease_until is not None
    assert beaten.lease_until > job.lease_until + 50
    check(database, job)  # the fencing number counts, not what the owner knew of the lease


def test_ended_lease_is_not_revived_by_its_owner(database: Database) -> None:
    registered(database)
    enqueue(database)
    job = leased(database)
    expire(database)
    with pytest.raises(LeaseLostError):
        database.run(lambda connection: jobs.heartbeat(connection, database, job))
    with pytest.raises(LeaseLostError):
        check(database, job)


def test_attempts_are_capped(database: Database) -> None:
    registered(database)
    enqueue(database, n=1)
    enqueue(database, n=2)
    for attempt in range(1, jobs.MAXIMUM_ATTEMPTS + 1):
        job = leased(database)
        assert (job.options, job.attempts) == ({"n": 1}, attempt)
        expire(database)
    assert leased(database).options == {"n": 2}
    with database.read() as connection:
        given_up = jobs.get_job(connection, job.id)
    assert given_up.status == "failed"
    assert given_up.error is not None
    assert given_up.error["type"] == "attempts-exhausted"


def test_released_job_waits_again_and_costs_no_attempt(database: Database) -> None:
    registered(database)
    enqueue(database)
    old = leased(database, "a")
    free = database.run(lambda connection: jobs.release(connection, old))
    assert (free.status, free.attempts, free.lease_owner) == ("queued", 0, None)
    new = leased(database, "a")
    assert (new.id, new.fencing) == (old.id, 2)
    with pytest.raises(LeaseLostError):
        finish(database, old)


def test_lists_are_newest_first(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    ids = [enqueue(database, n=number).id for number in range(3)]
    other = enqueue(database, "chat").id
    running = leased(database).id
    with database.read() as connection:

        def listed(**options: Any) -> list[str]:
            return [job.id for job in jobs.list_jobs(connection, **options)]

        assert listed() == [other, *reversed(ids)]
        assert listed(drafter="code", limit=2) == [ids[2], ids[1]]
        assert listed(drafter="code", before=ids[1]) == [ids[0]]
        assert listed(status="running") == [running]


@pytest.mark.slow
def test_workers_share_jobs_without_overlap(database: Database) -> None:
    for drafter in ("code", "chat"):
        registered(database, drafter)
        for number in range(6):
            enqueue(database, drafter, n=number)
    said = run("leases", database.url, count=4)
    began = {line["job"]: line for line in said if "began" in line}
    ended = {line["job"]: line for line in said if "ended" in line}
    assert len(began) == len(ended) == 12 == sum("began" in line for line in said)
    spans = defaultdict(list)
    for job, line in began.items():
        spans[line["drafter"]].append((line["began"], ended[job]["ended"]))
    for times in spans.values():
        ordered = sorted(times)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(ordered))


# SQLite, whose clock is the machine's: set back, it neither revives nor stretches a lease.


@pytest.fixture
def set_back(sqlite_url: str) -> Iterator[tuple[Database, ManualClock]]:
    clock = ManualClock()
    database = Database.open(sqlite_url, clock=clock)
    registered(database)
    enqueue(database)
    yield database, clock
    database.close()


def test_clock_set_back_does_not_revive_an_ended_lease(
    set_back: tuple[Database, ManualClock],
) -> None:
    database, clock = set_back
    job = leased(database, "a")
    clock.seconds = START + 31
    with pytest.raises(LeaseLostError):
        check(database, job)
    clock.seconds = START + 1
    with pytest.raises(LeaseLostError):
        check(database, job)
    # Nor for a process that starts now and has seen no other time.
    database.run(database.now)
    fresh = Database.open(database.url, clock=ManualClock(START - 3600))
    assert leased(fresh, "b").fencing == 2
    fresh.close()


def test_clock_set_back_does_not_stretch_a_lease(sqlite_url: str) -> None:
    wall, walked = ManualClock(), ManualClock(0.0)
    database = Database.open(sqlite_url, clock=wall)
    steady = SteadyClock(wall, walked)
    database.engine = database.engine.execution_options(store_clock=steady)
    registered(database)
    enqueue(database)
    job = leased(database, "a", seconds=30)
    assert job.lease_until == START + 30
    wall.seconds, walked.seconds = START - 3600, 10.0
    beaten = database.run(lambda c: jobs.heartbeat(c, database, job, seconds=30))
    assert beaten.lease_until == START + 40  # ten seconds went by, not minus an hour
    walked.seconds = 39.0
    assert lease(database, "b") is None
    walked.seconds = 41.0
    assert leased(database, "b").fencing == 2
    database.close()


def test_clock_set_forward_ends_leases_but_loses_nothing(
    set_back: tuple[Database, ManualClock],
) -> None:
    database, clock = set_back
    old = leased(database, "a")
    clock.seconds = START + 10**6
    new = leased(database, "b")
    clock.seconds = START
    with pytest.raises(LeaseLostError):
        finish(database, old)
    assert finish(database, new).status == "succeeded"
