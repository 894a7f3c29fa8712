from __future__ import annotations

import threading

import pytest

from monitoring.job_lease import LeaseKeeper
from monitoring.store.database import Database
from monitoring.store.jobs import check_fence, get_job, lease_next, release
from tests.monitoring.worker_support import leased, read, registered

WAIT = 30.0


def test_beats_keep_a_lease_that_would_have_ended(database: Database) -> None:
    registered(database, 2)
    job = leased(database, seconds=0.5)
    assert job.lease_until is not None
    with LeaseKeeper(database, job, lease_seconds=0.5, beat_seconds=0.1) as keeper:
        deadline = job.lease_until + 0.5
        seen = threading.Event()
        while not seen.wait(0.05) and read(database, database.now) < deadline:
            pass
        database.run(lambda connection: check_fence(connection, database, job))
        assert not keeper.lost
    renewed = read(database, get_job, job.id)
    assert renewed.lease_until > job.lease_until
    assert renewed.fencing == job.fencing


def test_a_lease_that_somebody_else_has_is_reported(database: Database) -> None:
    registered(database, 2)
    job = leased(database)
    with LeaseKeeper(database, job, lease_seconds=60.0, beat_seconds=0.05) as keeper:
        database.run(lambda connection: release(connection, job))
        taken = database.run(lambda c: lease_next(c, database, "somebody else"))
        assert taken is not None
        assert taken.fencing > job.fencing
        pause = threading.Event()
        for _ in range(int(WAIT / 0.05)):
            if keeper.lost or pause.wait(0.05):
                break
        assert keeper.lost
    assert read(database, get_job, job.id).lease_owner == "somebody else"


def test_the_thread_ends_with_the_block(database: Database) -> None:
    registered(database, 2)
    job = leased(database)
    with (
        pytest.raises(RuntimeError, match="work"),
        LeaseKeeper(database, job, lease_seconds=60.0, beat_seconds=10.0),
    ):
        raise RuntimeError("work failed")
    assert f"lease-{job.id}" not in {thread.name for thread in threading.enumerate()}
