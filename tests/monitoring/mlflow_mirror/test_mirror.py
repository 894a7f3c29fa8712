"""The mirror's patience and its order, with a stand-in for MLflow and a clock that is moved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monitoring.mlflow_mirror.errors import TrackingAwayError, TrackingRefusedError
from monitoring.mlflow_mirror.mirror import AWAY_KEY, Mirror, MirrorSettings
from monitoring.store import tracking_outbox as outbox
from monitoring.store.database import Database
from monitoring.store.events import list_events
from monitoring.store.tracking_outbox import Entry
from tests.monitoring.store.store_fixtures import ManualClock, register


class Recorder:
    """Remembers what it was told; fails as it is asked to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.failing: Callable[[Entry], Exception | None] = lambda entry: None

    def deliver(self, entry: Entry) -> None:
        error = self.failing(entry)
        if error is not None:
            raise error
        self.told.append((entry.drafter, entry.id))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(sqlite_url: str, clock: ManualClock) -> Database:
    return Database.open(sqlite_url, clock=clock)


def mirror(store: Database, teller: Recorder, **settings: float) -> Mirror:
    return Mirror(
        store,
        lambda: teller,
        "mirror",
        MirrorSettings(**settings),
        on_overrun=lambda: None,
    )


def totals(store: Database) -> outbox.TrackingTotals:
    with store.read() as connection:
        return outbox.totals(connection)


def open_events(store: Database) -> list[str]:
    with store.read() as connection:
        return [event.kind for event in list_events(connection, state="open", limit=10)]


def test_an_hour_without_the_server_loses_nothing_and_doubles_nothing(
    store: Database, clock: ManualClock
) -> None:
    store.run(register)
    teller, stop = Recorder(), threading.Event()
    teller.failing = lambda entry: TrackingAwayError("connection refused")
    began, pauses, added = clock.seconds, [], 0

    def wait(seconds: float) -> None:
        nonlocal added
        pauses.append(seconds)
        clock.seconds += seconds
        if clock.seconds - began >= 3600.0:
            teller.failing = lambda entry: None
        elif added < 5:  # the service goes on meanwhile
            store.run(lambda c: register(c, f"drafter-{added}"))
            added += 1
        if totals(store).waiting == 0:
            stop.set()

    mirror(store, teller, longest_pause_seconds=300.0).run(stop, wait)
    after = totals(store)
    assert (after.deferred, after.delivered, after.waiting, after.failed) == (12, 12, 0, 0)
    assert len(set(teller.told)) == len(teller.told) == 12
    for name in {drafter for drafter, _ in teller.told}:
        numbers = [number for drafter, number in teller.told if drafter == name]
        assert numbers == sorted(numbers)
    assert 0.5 <= pauses[0] <= 1.0
    assert max(pauses) <= 300.0
    assert len(pauses) < 50  # patient: an hour is not a thousand knocks
    assert open_events(store) == []


def test_a_long_outage_is_an_event_until_the_first_delivery(
    store: Database, clock: ManualClock
) -> None:
    store.run(register)
    teller = Recorder()
    teller.failing = lambda entry: TrackingAwayError("it hangs")
    working = mirror(store, teller)
    assert working.step() == "away"
    assert "tracking_unreachable" not in open_events(store)
    clock.seconds += 61.0
    assert working.step() == "away"
    assert "tracking_unreachable" in open_events(store)
    teller.failing = lambda entry: None
    assert working.step() == "delivered"
    assert "tracking_unreachable" not in open_events(store)
    assert AWAY_KEY == "tracking_unreachable"


def test_what_is_refused_is_kept_told_as_an_event_and_skipped(store: Database) -> None:
    store.run(register)
    teller = Recorder()
    teller.failing = lambda e: TrackingRefusedError("no") if e.kind == "revision" else None
    working = mirror(store, teller)
    assert [working.step() for _ in range(3)] == ["delivered", "delivered", "idle"]
    assert (totals(store).failed, totals(store).delivered) == (1, 1)
    assert open_events(store) == ["tracking_failed"]


def test_an_unexpected_error_is_tried_five_times(store: Database) -> None:
    store.run(register)
    teller = Recorder()
    teller.failing = lambda e: ZeroDivisionError("a fault") if e.kind == "revision" else None
    working = mirror(store, teller)
    steps = [working.step() for _ in range(6)]
    assert steps == ["faulty"] * 4 + ["delivered", "delivered"]
    assert (totals(store).failed, totals(store).delivered) == (1, 1)


def test_the_server_is_not_asked_for_before_there_is_something_to_tell(store: Database) -> None:
    asked: list[int] = []

    def connect() -> Recorder:
        asked.append(1)
        raise TrackingAwayError("refused")

    working = Mirror(store, connect, "mirror", on_overrun=lambda: None)
    assert working.step() == "idle"
    assert asked == []
    store.run(register)
    assert working.step() == "away"
    # Nothing was claimed: the entry is free for another process at once.
    assert totals(store).deferred == 2
    with store.read() as connection:
        assert {entry.attempts for entry in outbox.list_entries(connection)} == {0}


def test_an_entry_that_outlasts_its_lease_calls_out(store: Database, tmp_path: Path) -> None:
    store.run(register)
    called = threading.Event()

    class Hanging:
        def deliver(self, entry: Entry) -> None:
            assert called.wait(30.0)

    settings = MirrorSettings(lease_seconds=0.05)
    working = Mirror(store, Hanging, "mirror", settings, on_overrun=called.set)
    working.step()
    assert called.is_set()
