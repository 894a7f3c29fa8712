from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from calib.errors import ConfigurationError
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError, StoreUnavailableError
from monitoring.store.events import list_events
from monitoring.store.jobs import Job, check_fence, finish, get_job, lease_next, list_jobs
from monitoring.store.publications import current_publication
from monitoring.store.reports import latest_report
from monitoring.store.revisions import aliases, list_revisions
from monitoring.worker import Worker, WorkerSettings
from tests.monitoring.worker_support import DRAFTER, ordered, read, registered, stored
from tests.postgres_server import PostgresServer
from tests.support.telemetry import synthetic_records

WAIT = 60.0
QUICK = WorkerSettings(poll_seconds=0.05, grace_seconds=0.2, chores_seconds=3600.0)


def done(database: Database, job: Job, **result: Any) -> None:
    """Finish a job as handlers do."""

    def commit(connection: Any) -> None:
        check_fence(connection, database, job)
        finish(connection, job, "succeeded", result)

    database.run(commit)


class Blocked:
    """A handler that waits in the middle of its work."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()
        self.ended = threading.Event()
        self.error: Exception | None = None

    def __call__(self, database: Database, job: Job) -> None:
        self.started.set()
        self.go_on.wait(WAIT)
        try:
            done(database, job)
        except Exception as error:
            self.error = error
            raise
        finally:
            self.ended.set()


@contextmanager
def running(worker: Worker) -> Iterator[threading.Event]:
    """The worker in a thread, stopped and joined at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(WAIT)
        assert not thread.is_alive()


def eventually(question: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.05)):
        if question():
            return
        pause.wait(0.05)
    raise AssertionError("it never came true")


def status(database: Database, job: Job) -> str:
    return str(read(database, get_job, job.id).status)


@pytest.mark.slow
def test_a_recalibration_and_its_report_are_done_without_being_asked_twice(
    database: Database,
) -> None:
    registered(database, 2)
    stored(database, synthetic_records(4000, gamma=2, prompts=150))
    job = ordered(database)
    worker = Worker(database, "worker")
    assert worker.run_once()
    assert status(database, job) == "succeeded"
    assert read(database, aliases, DRAFTER).challenger == 1
    (report,) = read(database, list_jobs, status="queued")
    assert report.kind == "report"
    assert worker.run_once()
    found = read(database, latest_report, DRAFTER)
    assert found.revision == 0
    assert not worker.run_once()


def test_what_a_job_publishes_is_fresh_for_as_long_as_the_setting_says(
    database: Database,
) -> None:
    registered(database, 2)
    stored(database, synthetic_records(4000, gamma=2, prompts=150))
    ordered(database, promote="guard")
    assert Worker(database, "worker", WorkerSettings(valid_for_seconds=600.0)).run_once()
    found = read(database, current_publication, DRAFTER)
    assert found.number == 2
    assert found.valid_until == pytest.approx(found.published_at + 600.0)


def test_without_rows_there_is_nothing_to_report(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    worker = Worker(database, "worker")
    assert worker.run_once()
    assert status(database, job) == "refused"
    assert not worker.run_once()


def test_a_handler_that_raises_fails_its_job_and_not_the_worker(database: Database) -> None:
    registered(database, 2)

    def broken(database: Database, job: Job) -> None:
        raise ZeroDivisionError("secret telemetry")

    job = ordered(database)
    worker = Worker(database, "worker", QUICK, handlers={"recalibration": broken})
    assert worker.run_once()
    found = read(database, get_job, job.id)
    assert (found.status, found.error["type"]) == ("failed", "ZeroDivisionError")
    assert "secret" not in str(found.error)
    (event,) = read(database, list_events, state="open")
    assert event.kind == "job_failed"
    again = ordered(database)
    healthy = Worker(database, "other", QUICK, handlers={"recalibration": done})
    assert healthy.run_once()
    assert status(database, again) == "succeeded"
    assert read(database, list_events, state="open") == []


def test_errors_raised_on_purpose_are_told(database: Database) -> None:
    registered(database, 2)

    def picky(database: Database, job: Job) -> None:
        raise ConfigurationError("rows", -1, "give more")

    job = ordered(database)
    Worker(database, "worker", QUICK, handlers={"recalibration": picky}).run_once()
    assert read(database, get_job, job.id).error["reason"] == "rows: got -1; give more"


def test_a_kind_that_this_release_does_not_know_fails(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    Worker(database, "worker", QUICK, handlers={"report": done}).run_once()
    assert status(database, job) == "failed"


@pytest.mark.slow
def test_work_longer_than_the_lease_keeps_it(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    handler = Blocked()
    settings = WorkerSettings(lease_seconds=1.0, beat_seconds=0.2)
    worker = Worker(database, "worker", settings, handlers={"recalibration": handler})
    with running(worker):
        assert handler.started.wait(WAIT)
        first = read(database, get_job, job.id).lease_until
        eventually(lambda: read(database, database.now) > first + 0.5)
        assert database.run(lambda c: lease_next(c, database, "thief")) is None
        handler.go_on.set()
        eventually(lambda: status(database, job) == "succeeded")
    assert read(database, get_job, job.id).attempts == 1


def test_a_result_after_a_lost_lease_is_thrown_away(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    handler = Blocked()
    # No beat before the lease ends: as if the process had been frozen.
    settings = WorkerSettings(lease_seconds=0.3, beat_seconds=600.0, poll_seconds=600.0)
    slow = Worker(database, "slow", settings, handlers={"recalibration": handler})
    with running(slow):
        assert handler.started.wait(WAIT)
        other = Worker(database, "other", QUICK, handlers={"recalibration": done})
        eventually(other.run_once)
        assert status(database, job) == "succeeded"
        handler.go_on.set()
        assert handler.ended.wait(WAIT)
    assert isinstance(handler.error, LeaseLostError)
    found = read(database, get_job, job.id)
    assert (found.status, found.fencing) == ("succeeded", 2)


def test_a_stop_releases_what_does_not_end_in_time(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    handler = Blocked()
    worker = Worker(database, "worker", QUICK, handlers={"recalibration": handler})
    with running(worker) as stop:
        assert handler.started.wait(WAIT)
        stop.set()
    found = read(database, get_job, job.id)
    assert (found.status, found.attempts, found.lease_owner) == ("queued", 0, None)
    handler.go_on.set()
    assert handler.ended.wait(WAIT)
    assert isinstance(handler.error, LeaseLostError)  # too late: it left nothing
    assert status(database, job) == "queued"


def test_a_stop_lets_work_end_within_the_grace_period(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    handler = Blocked()
    settings = WorkerSettings(grace_seconds=WAIT)
    worker = Worker(database, "worker", settings, handlers={"recalibration": handler})
    with running(worker) as stop:
        assert handler.started.wait(WAIT)
        stop.set()
        handler.go_on.set()
    assert status(database, job) == "succeeded"


def test_a_store_that_fails_in_the_middle_costs_no_attempt(database: Database) -> None:
    registered(database, 2)
    job = ordered(database)
    calls = 0

    def unlucky(database: Database, job: Job) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StoreUnavailableError("the connection was lost")
        done(database, job)

    worker = Worker(database, "worker", QUICK, handlers={"recalibration": unlucky})
    with running(worker):
        eventually(lambda: status(database, job) == "succeeded")
    assert read(database, get_job, job.id).attempts == 1


def test_looking_for_jobs_writes_nothing(database: Database) -> None:
    """On SQLite every write costs a disk flush, and the worker looks twice a second."""
    registered(database, 2)
    worker = Worker(database, "worker", QUICK)

    def forbidden(*arguments: object, **options: object) -> Any:
        raise AssertionError("an idle look must not write")

    database.run = forbidden  # type: ignore[method-assign]
    assert not worker.run_once()


def test_two_workers_do_each_job_once(database: Database) -> None:
    registered(database, 2)
    names = [registered(database, 2, f"drafter-{index}") for index in range(4)]
    jobs = [ordered(database, drafter=name) for name in names]
    seen: list[str] = []

    def counted(database: Database, job: Job) -> None:
        seen.append(job.id)
        done(database, job)

    workers = [Worker(database, f"w{i}", QUICK, handlers={"recalibration": counted}) for i in "ab"]
    with running(workers[0]), running(workers[1]):
        eventually(lambda: all(status(database, job) == "succeeded" for job in jobs))
    assert sorted(seen) == sorted(job.id for job in jobs)


@pytest.mark.slow
def test_postgresql_restarted_under_a_worker() -> None:
    """The worker waits, comes back by itself, and does what was ordered."""
    from monitoring.store.migrate import upgrade

    with PostgresServer.created() as server:
        database = Database.open(server.create_database("restart"))
        upgrade(database)
        registered(database, 2)
        stored(database, synthetic_records(3000, gamma=2, prompts=100))
        with running(Worker(database, "worker", QUICK)):
            server.restart(immediately=True)
            job = ordered(database)
            eventually(lambda: status(database, job) == "succeeded")
        assert len(read(database, list_revisions, DRAFTER)) == 2
        database.close()


def test_a_worker_watches_telemetry_beside_its_jobs(database: Database) -> None:
    import json

    from monitoring.loop_settings import LoopSettings
    from monitoring.store import monitor_states
    from tests.monitoring.loop_rows import rows

    registered(database, 7)
    stored(database, rows(1, 600))
    settings = WorkerSettings(
        poll_seconds=0.05, chores_seconds=3600.0, loop=LoopSettings(automatic=False)
    )
    with running(Worker(database, "loop", settings)):
        for _ in range(int(WAIT / 0.05)):
            found = read(database, monitor_states.load_document, DRAFTER)
            if found is not None:
                break
            threading.Event().wait(0.05)
    assert found is not None
    assert json.loads(found.document)["rows"] == 600
