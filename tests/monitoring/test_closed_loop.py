"""The loop with a database: what a turn leaves behind, and that it leaves all of it or nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from calib.calibration import Calibration
from monitoring.closed_loop import ClosedLoop
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state_bytes import state_from_bytes, state_to_bytes
from monitoring.store import drafter_leases, monitor_states
from monitoring.store.cost_tables import put_cost_table
from monitoring.store.database import Database
from monitoring.store.drafter_rows import state_of
from monitoring.store.events import list_events, open_event
from monitoring.store.jobs import list_jobs
from monitoring.store.publications import current_publication, raise_exploration
from monitoring.store.revisions import add_revision, aliases, set_challenger
from tests.monitoring.loop_rows import rows
from tests.monitoring.worker_support import DRAFTER, promoted, read, registered, stored

SETTINGS = LoopSettings(refit_seconds=0.0)


def looped(database: Database, owner: str = "one", **options: Any) -> ClosedLoop:
    settings = options.pop("settings", SETTINGS)
    return ClosedLoop(database, owner, settings, **options)


def challenger(database: Database, temperature: float, last_batch: int) -> int:
    def work(connection: Any) -> int:
        made = add_revision(
            connection,
            DRAFTER,
            Calibration.from_temperatures([temperature] * 7, gamma=7),
            provenance={"window": {"last_batch": last_batch}},
            actor="test",
        )
        set_challenger(connection, DRAFTER, made.number, actor="test")
        return made.number

    return database.run(work)


def explores_more(database: Database) -> bool:
    found: bool = read(database, state_of, DRAFTER).drafter.explores_more
    return found


def kinds(database: Database) -> list[str]:
    return [event.kind for event in reversed(read(database, list_events))]


def test_a_turn_stores_state_document_events_and_the_job_it_orders(database: Database) -> None:
    registered(database, 7)
    ids = stored(database, rows(1, 2000, scale=1.6), batches=4)
    loop = looped(database)
    assert loop.turn(DRAFTER)
    assert not loop.turn(DRAFTER)
    row = read(database, monitor_states.load, DRAFTER)
    assert row.consumed_through == ids[-1]
    document = json.loads(row.document)
    assert (document["status"], document["rows"]) == ("drift", 2000)
    assert kinds(database) == ["drift", "recalibration_scheduled"]
    assert explores_more(database)
    drift = next(e for e in read(database, list_events) if e.kind == "drift")
    assert (drift.severity, drift.state, drift.dedup_key) == ("critical", "open", "drift/drafter")
    assert drift.count == 2  # warn, then act: one event
    job = read(database, list_jobs, drafter=DRAFTER)[0]
    assert job.options["window"] == {"from_batch": ids[0], "through_batch": ids[-1]}
    assert job.options["method"] == "survival"
    state = state_from_bytes(row.state)
    assert state.fit is not None
    assert state.fit.ticket == job.id


def test_the_gate_promotes_and_the_new_baseline_resolves_the_event(database: Database) -> None:
    registered(database, 7)
    first = stored(database, rows(2, 1500, scale=1.6), batches=3)
    costs = {"batch_tokens": [64, 128, 512], "step_seconds": [0.02, 0.022, 0.08]}
    database.run(lambda link: put_cost_table(link, DRAFTER, costs, actor="test"))
    loop = looped(database)
    loop.turn(DRAFTER)
    assert explores_more(database)
    number = challenger(database, 1.6, first[-1])
    stored(database, rows(3, 1500, scale=1.6, first_step=1500), batches=3)
    loop.turn(DRAFTER)
    assert not explores_more(database)
    assert read(database, aliases, DRAFTER).champion == number
    assert read(database, aliases, DRAFTER).challenger is None
    assert read(database, current_publication, DRAFTER).number == 2
    stored(database, rows(4, 500, scale=1.6, first_step=3000))
    loop.turn(DRAFTER)
    assert not explores_more(database)
    found = {event.kind: event for event in read(database, list_events)}
    assert found["promoted"].details["challenger"] == number
    worth = found["promoted"].details["evidence"]["throughput"]
    assert worth["gain_low"] < worth["gain"] < worth["gain_high"]
    assert worth["verdict"] != "loses"
    assert "throughput" in found["promoted"].details["reason"]
    assert found["drift"].state == "resolved"
    document = json.loads(read(database, monitor_states.load_document, DRAFTER).document)
    assert (document["status"], document["revision"]) == ("collecting", number)
    assert document["watch"]["previous"] == 0


def test_harm_by_hand_is_rolled_back_and_cooled_down(database: Database) -> None:
    registered(database, 7)
    stored(database, rows(5, 500))
    loop = looped(database)
    loop.turn(DRAFTER)
    harmful = challenger(database, 2.5, 0)
    promoted(database, harmful)
    stored(database, rows(6, 1500, first_step=500), batches=3)
    loop.turn(DRAFTER)
    assert read(database, aliases, DRAFTER).champion == 0
    assert "rolled_back" in kinds(database)
    stored(database, rows(7, 500, first_step=2000))
    loop.turn(DRAFTER)
    document = json.loads(read(database, monitor_states.load_document, DRAFTER).document)
    assert document["cool_down_until"] is not None
    assert document["watch"] is None


def test_a_refused_challenger_is_taken_away_with_its_reason(database: Database) -> None:
    registered(database, 7)
    first = stored(database, rows(8, 500))
    loop = looped(database)
    loop.turn(DRAFTER)
    challenger(database, 0.5, first[-1])
    stored(database, rows(9, 2000, first_step=500), batches=2)
    loop.turn(DRAFTER)
    assert read(database, aliases, DRAFTER).challenger is None
    refused = next(e for e in read(database, list_events) if e.kind == "promotion_refused")
    assert refused.details["refusal"] == "not_better"


def test_one_worker_acts_on_a_drafter_and_a_lost_lease_commits_nothing(
    database: Database,
) -> None:
    registered(database, 7)
    stored(database, rows(10, 300))
    one, other = looped(database, "one", lease_seconds=30.0), looped(database, "other")
    assert one.turn(DRAFTER)
    stored(database, rows(11, 300, first_step=300))
    assert not other.turn(DRAFTER)
    held = read(database, drafter_leases.holder, DRAFTER)
    database.run(lambda connection: drafter_leases.release(connection, held))
    assert other.turn(DRAFTER)  # took over, and read on where the first one stood
    assert read(database, monitor_states.load, DRAFTER).consumed_through == 2
    stored(database, rows(12, 300, first_step=600))
    assert not one.turn(DRAFTER)  # its fence does not hold any more
    assert read(database, monitor_states.load, DRAFTER).consumed_through == 2


def test_r68_turns_of_a_restarted_loop_end_in_the_very_same_state(database: Database) -> None:
    registered(database, 7)
    stored(database, rows(13, 2000, scale=1.6), batches=8)
    expected = None
    for restarts in (False, True):
        loop = looped(database, f"w{restarts}", batches=2)
        while loop.turn(DRAFTER):
            if restarts:
                loop.release()
                loop = looped(database, "again", batches=2)
        loop.release()
        found = state_from_bytes(read(database, monitor_states.load, DRAFTER).state)
        if expected is None:
            expected = found
            _forget(database)
        else:
            assert expected.drift is not None
            assert found.drift is not None
            assert found.drift.to_dict() == expected.drift.to_dict()
            assert (found.rows, found.act_row) == (expected.rows, expected.act_row)


def test_a_fit_that_was_refused_lets_the_next_one_come(database: Database) -> None:
    registered(database, 7)
    stored(database, rows(14, 1500, scale=1.6), batches=3)
    loop = looped(database)
    loop.turn(DRAFTER)
    state = state_from_bytes(read(database, monitor_states.load, DRAFTER).state)
    assert state.fit is not None

    def fail(connection: Any) -> None:
        from monitoring.store.jobs import finish, lease_next

        job = lease_next(connection, database, "w")
        assert job is not None
        finish(connection, job, "refused", {"refusal": "not_better"}, None)

    database.run(fail)
    stored(database, rows(15, 200, scale=1.6, first_step=1500))
    loop.turn(DRAFTER)
    state = state_from_bytes(read(database, monitor_states.load, DRAFTER).state)
    assert state.fit is None
    assert state.last_fit_row == 1500


def test_a_setting_that_changed_holds_without_new_rows(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitoring.closed_loop._TICK_SECONDS", 0.0)
    registered(database, 7)
    stored(database, rows(21, 1500, scale=1.6), batches=3)
    for name, settings, expected in (
        ("spends", SETTINGS, True),
        ("saves", replace(SETTINGS, exploration_share_on_warning=0.0), False),
        ("spends again", SETTINGS, True),
        ("only tells", replace(SETTINGS, automatic=False), False),
    ):
        loop = looped(database, name, settings=settings)
        loop.turn(DRAFTER)
        assert explores_more(database) is expected
        document = json.loads(read(database, monitor_states.load_document, DRAFTER).document)
        assert (document["status"], document["exploration"]["raised"]) == ("drift", expected)
        loop.release()


def test_a_damaged_state_begins_anew_and_repeats_no_row(database: Database) -> None:
    registered(database, 7)
    stored(database, rows(16, 400))
    looped(database).turn(DRAFTER)
    row = read(database, monitor_states.load, DRAFTER)
    database.run(
        lambda connection: monitor_states.save(
            connection,
            DRAFTER,
            consumed_through=row.consumed_through,
            state=row.state[:-1],
            document=row.document,
        )
    )
    for key in (f"drift/{DRAFTER}", f"data_quality/{DRAFTER}/silence", "drift/another"):
        database.run(lambda c, key=key: open_event(c, "drift", "warning", key, dedup_key=key))
    held = read(database, drafter_leases.holder, DRAFTER)
    database.run(lambda connection: drafter_leases.release(connection, held))
    database.run(lambda link: raise_exploration(link, DRAFTER, True, publication=1))
    stored(database, rows(17, 300, first_step=400))
    assert looped(database, "two").turn(DRAFTER)
    state = state_from_bytes(read(database, monitor_states.load, DRAFTER).state)
    assert state.rows_total == 300
    # Its evidence is gone: what it had opened could never be resolved.
    left = read(database, list_events, state="open")
    assert [event.title for event in left] == ["drift/another"]
    assert not explores_more(database)


def _forget(database: Database) -> None:
    from sqlalchemy import delete

    from monitoring.store import tables

    database.run(lambda connection: connection.execute(delete(tables.monitor_states)))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitoring.closed_loop._TICK_SECONDS", 1e9)


def test_nothing_is_read_twice_when_rows_come_in_two_batches_of_one_turn(
    database: Database,
) -> None:
    registered(database, 7)
    records = rows(18, 600)
    stored(database, records)
    stored(database, records)  # the same rows, sent again without a key
    looped(database).turn(DRAFTER)
    state = state_from_bytes(read(database, monitor_states.load, DRAFTER).state)
    assert (state.rows_total, state.duplicates) == (600, 600)
    assert len(state_to_bytes(state)) < 1_000_000


def test_a_person_who_acts_during_a_turn_wins_and_the_turn_is_taken_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    from monitoring import closed_loop

    registered(database, 7)
    first = stored(database, rows(19, 1500, scale=1.6), batches=3)
    loop = looped(database)
    loop.turn(DRAFTER)
    proposed = challenger(database, 1.6, first[-1])
    stored(database, rows(20, 1500, scale=1.6, first_step=1500), batches=3)
    fold = closed_loop.fold

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        found = fold(*arguments, **options)
        if read(database, aliases, DRAFTER).champion == 0:
            promoted(database, proposed)  # by hand, between the turn's look and its commit
        return found

    monkeypatch.setattr(closed_loop, "fold", meanwhile)
    assert not loop.turn(DRAFTER)
    assert read(database, monitor_states.load, DRAFTER).consumed_through == first[-1]
    assert loop.turn(DRAFTER)  # with the lease it kept
    state = state_from_bytes(read(database, monitor_states.load, DRAFTER).state)
    assert (state.champion, state.rows, state.rows_total) == (proposed, 1500, 3000)
    assert read(database, current_publication, DRAFTER).number == 2
