from __future__ import annotations

import threading

import pytest

from calib.calibration import Calibration
from monitoring.store.database import Database
from monitoring.store.jobs import list_jobs
from monitoring.store.revisions import add_revision
from monitoring.store.telemetry import counters
from monitoring.telemetry_report import report_job
from monitoring.worker import Worker, WorkerSettings
from monitoring.worker_chores import Chores
from tests.monitoring.worker_support import (
    DRAFTER,
    promoted,
    read,
    registered,
    stored,
)
from tests.support.telemetry import synthetic_records


class Hand:
    """Monotonic seconds that move by hand."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def chores(database: Database, hand: Hand, **options: float | int | None) -> Chores:
    settings = {
        "report_seconds": 300.0,
        "retention_seconds": None,
        "retention_bytes": None,
        "every_seconds": 600.0,
        **options,
    }
    return Chores(database, monotonic=hand, **settings)  # type: ignore[arg-type]


def ordered_reports(database: Database) -> int:
    return len(read(database, list_jobs, status="queued"))


def finished_report(database: Database) -> None:
    worker = Worker(database, "w", WorkerSettings(), handlers={"report": report_job})
    assert worker.run_once()


def test_nothing_is_reported_before_telemetry_came(database: Database) -> None:
    registered(database, 2)
    hand = Hand()
    round_ = chores(database, hand)
    round_.run()
    assert ordered_reports(database) == 0


def test_the_first_telemetry_is_reported_within_half_a_minute(database: Database) -> None:
    registered(database, 2)
    hand = Hand()
    round_ = chores(database, hand)
    round_.run()
    stored(database, synthetic_records(200, gamma=2))
    hand.seconds += 31.0
    round_.run()
    round_.run()
    assert ordered_reports(database) == 1


@pytest.mark.slow
def test_a_promotion_is_reported_at_once(database: Database) -> None:
    registered(database, 2)
    stored(database, synthetic_records(200, gamma=2))
    hand = Hand()
    round_ = chores(database, hand)
    round_.run()
    finished_report(database)
    hand.seconds += 2.0
    round_.run()
    assert ordered_reports(database) == 0
    hand_made(database)
    hand.seconds += 2.0
    round_.run()
    assert ordered_reports(database) == 1


def test_an_old_report_is_made_anew_only_if_rows_came(database: Database) -> None:
    registered(database, 2)
    stored(database, synthetic_records(200, gamma=2))
    hand = Hand()
    round_ = chores(database, hand, report_seconds=1e-9)
    round_.run()
    finished_report(database)
    hand.seconds += 60.0
    round_.run()
    assert ordered_reports(database) == 0
    stored(database, synthetic_records(10, gamma=2, seed=1))
    hand.seconds += 60.0
    round_.run()
    assert ordered_reports(database) == 1


def test_retention_runs_at_the_start_and_then_by_time(database: Database) -> None:
    registered(database, 2)
    stored(database, synthetic_records(200, gamma=2), batches=4)
    hand = Hand()
    round_ = chores(database, hand, retention_bytes=1)
    round_.run()
    assert read(database, counters, DRAFTER).stored_rows < 200
    stored(database, synthetic_records(200, gamma=2, seed=1), batches=4)
    hand.seconds += 599.0
    round_.run()
    assert read(database, counters, DRAFTER).stored_rows >= 200
    hand.seconds += 2.0
    round_.run()
    assert read(database, counters, DRAFTER).stored_rows < 200


def test_a_worker_does_its_chores(database: Database) -> None:
    registered(database, 2)
    stored(database, synthetic_records(300, gamma=2))
    settings = WorkerSettings(retention_bytes=1, poll_seconds=0.05)
    stop = threading.Event()
    worker = threading.Thread(target=Worker(database, "w", settings).run, args=(stop,))
    worker.start()
    for _ in range(1200):
        if read(database, counters, DRAFTER).stored_rows < 300:
            break
        stop.wait(0.05)
    stop.set()
    worker.join(60.0)
    assert read(database, counters, DRAFTER).stored_rows < 300


def hand_made(database: Database) -> None:
    calibration = Calibration.from_temperatures([1.5, 1.5], gamma=2)
    revision = database.run(
        lambda connection: add_revision(
            connection, DRAFTER, calibration, provenance={"origin": "manual"}, actor="test"
        )
    )
    promoted(database, revision.number)
