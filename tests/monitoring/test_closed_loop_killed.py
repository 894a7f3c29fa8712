"""``kill -9`` of real loops inside and between folds: no row is repeated, none is skipped."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import delete

from monitoring.closed_loop import ClosedLoop
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state_bytes import state_from_bytes
from monitoring.store import drafter_leases, monitor_states, tables
from monitoring.store.database import Database
from monitoring.store.events import list_events
from monitoring.store.jobs import list_jobs
from monitoring.store.publications import current_publication
from tests.monitoring.loop_processes import LEASE_SECONDS, MOMENTS, process
from tests.monitoring.loop_rows import rows
from tests.monitoring.worker_support import DRAFTER, read, registered, stored

WAIT = 120.0


def _killed(database_url: str, through: int, moment: str, at: int) -> None:
    started, _ = process(database_url, f"loop-{moment}", through=through, moment=moment, at=at)
    started.join(WAIT)
    assert started.exitcode == -9, f"{moment}: {started.exitcode}"


def _until_lease_is_free(database: Database) -> None:
    ends = time.monotonic() + 10.0 * LEASE_SECONDS
    while read(database, drafter_leases.holder, DRAFTER) is not None:
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.slow
def test_r73_killed_loops_end_where_one_that_nobody_killed_does(
    database: Database, database_url: str
) -> None:
    registered(database, 7)
    ids = stored(database, rows(1, 1800, scale=1.6), batches=6)
    for moment, turn in zip(MOMENTS, (2, 1, 2), strict=True):
        _killed(database_url, ids[-1], moment, turn)
        _until_lease_is_free(database)
    started, done = process(database_url, "last", through=ids[-1])
    assert done.wait(WAIT)
    started.join(WAIT)
    killed = read(database, monitor_states.load, DRAFTER)
    assert killed.consumed_through == ids[-1]
    assert state_from_bytes(killed.state).rows_total == 1800
    drifts = [event for event in read(database, list_events) if event.kind == "drift"]
    assert [event.count for event in drifts] == [2]  # warn and act, once each
    assert len(read(database, list_jobs)) == 1
    assert read(database, current_publication, DRAFTER).number == 1

    _until_lease_is_free(database)
    database.run(lambda connection: connection.execute(delete(tables.monitor_states)))
    whole = ClosedLoop(database, "whole", LoopSettings(refit_seconds=0.0), batches=1)
    while whole.turn(DRAFTER):
        pass
    left: Any = read(database, monitor_states.load, DRAFTER)
    assert left.state == killed.state
    assert left.document == killed.document
