"""``kill -9`` of real workers: what was half done leaves no trace, and is done once by another."""

from __future__ import annotations

import random
import threading

import pytest

from calib.calibration import Calibration
from monitoring.store.database import Database
from monitoring.store.events import list_events
from monitoring.store.jobs import Job, get_job
from monitoring.store.revisions import aliases, get_revision, list_revisions
from tests.monitoring.worker_processes import LONG_LEASE_SECONDS, worker
from tests.monitoring.worker_support import DRAFTER, ordered, read, registered, stored
from tests.support.telemetry import synthetic_records

WAIT = 90.0
ROUNDS = 12


def eventually_over(database: Database, job: Job) -> str:
    pause = threading.Event()
    for _ in range(int(WAIT / 0.05)):
        status = str(read(database, get_job, job.id).status)
        if status not in ("queued", "running"):
            return status
        pause.wait(0.05)
    raise AssertionError("the job was never over")


def prepared(database: Database) -> None:
    registered(database, 2)
    stored(database, synthetic_records(4000, gamma=2, prompts=150), batches=2)


@pytest.mark.slow
def test_another_worker_takes_over_and_nothing_is_doubled(
    database: Database, database_url: str
) -> None:
    prepared(database)
    job = ordered(database)
    lease = LONG_LEASE_SECONDS
    with worker(database_url, "first", pause=600.0, lease=lease) as (process, fitting):
        assert fitting.wait(WAIT)
        process.kill()
        process.join(WAIT)
    left = read(database, get_job, job.id)
    assert (left.status, left.lease_owner) == ("running", "first")
    assert len(read(database, list_revisions, DRAFTER)) == 1
    with worker(database_url, "second", lease=lease):
        assert eventually_over(database, job) == "succeeded"
    done = read(database, get_job, job.id)
    assert (done.attempts, done.fencing) == (2, 2)
    assert len(read(database, list_revisions, DRAFTER)) == 2
    assert read(database, aliases, DRAFTER).challenger == done.result["revision"] == 1
    kinds = [event.kind for event in read(database, list_events)]
    assert kinds.count("challenger") == 1


@pytest.mark.slow
def test_a_frozen_worker_that_wakes_up_too_late_changes_nothing(
    database: Database, database_url: str
) -> None:
    """SIGSTOP and SIGCONT: a pause of the machine, longer than the lease."""
    import os
    import signal

    prepared(database)
    job = ordered(database)
    # Long enough to be frozen in, on any machine; while it is frozen the pause goes on.
    lease = LONG_LEASE_SECONDS
    with worker(database_url, "frozen", pause=5.0, lease=lease) as (process, fitting):
        assert fitting.wait(WAIT)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        with worker(database_url, "second", lease=lease):
            assert eventually_over(database, job) == "succeeded"
        os.kill(process.pid, signal.SIGCONT)
        again = ordered(database, rows=3000)
        assert eventually_over(database, again) == "succeeded"  # by the one that was frozen
    assert read(database, get_job, job.id).fencing == 2
    assert [r.number for r in read(database, list_revisions, DRAFTER)] == [2, 1, 0]


@pytest.mark.slow
def test_kills_at_random_moments_leave_whole_results_only(
    database: Database, database_url: str
) -> None:
    prepared(database)
    draw = random.Random(7)
    jobs = []
    for index in range(ROUNDS):
        jobs.append(ordered(database, rows=4000 - index))
        with worker(database_url, f"round-{index}", pause=0.02) as (process, fitting):
            fitting.wait(draw.uniform(0.05, 1.5))
            threading.Event().wait(draw.uniform(0.0, 0.1))
            process.kill()
    with worker(database_url, "last"):
        statuses = [eventually_over(database, job) for job in jobs]
    # A job whose owners died five times is given up; all others came to one whole result.
    assert set(statuses) <= {"succeeded", "failed"}
    results = [read(database, get_job, job.id) for job in jobs]
    made = [found.result["revision"] for found in results if found.status == "succeeded"]
    revisions = read(database, list_revisions, DRAFTER)
    assert sorted(revision.number for revision in revisions) == [0, *sorted(made)]
    assert len(set(made)) == len(made)
    for number in made:
        stored_one = read(database, get_revision, DRAFTER, number).calibration
        assert Calibration.from_json(stored_one.to_json()) == stored_one
        assert stored_one.evidence["held_out"]["champion"] == 0
    assert read(database, aliases, DRAFTER).challenger == max(made)
