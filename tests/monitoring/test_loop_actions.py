"""Decisions in the store: one transaction, refused when the drafter changed in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from monitoring.loop_actions import carry_out, forget_alarms
from monitoring.loop_decisions import Alarm, Decision, Hold, Promote, Resolve
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState
from monitoring.store.database import Database
from monitoring.store.drafter_rows import state_of
from monitoring.store.errors import PreconditionFailedError
from monitoring.store.events import acknowledge, list_events, open_event
from monitoring.store.revisions import aliases
from tests.monitoring.loop_rows import started
from tests.monitoring.test_closed_loop import challenger
from tests.monitoring.worker_support import DRAFTER, document, promoted, read, registered

SETTINGS = LoopSettings()


def alarm(level: Any, segment: dict[str, str] | None = None) -> Alarm:
    return Alarm(
        level,
        "act",
        "conditional",
        3,
        segment,
        "shift -0.5 at position 3",
        6.4,
        6.1,
        99,
        20,
        79,
        4,
        1_700_000_000.0,
    )


def done(
    database: Database,
    decisions: list[Decision],
    drafter: Any = None,
    state: MonitorState | None = None,
) -> None:
    seen = drafter or read(database, state_of, DRAFTER)
    folded = state or started(SETTINGS)

    def work(connection: Connection) -> None:
        carry_out(connection, folded, decisions, seen, settings=SETTINGS, document=document)

    database.run(work)


def test_one_change_is_one_event_until_it_is_resolved(database: Database) -> None:
    registered(database, 7)
    done(database, [alarm("warn"), alarm("act", {"domain": "code"})])
    (event,) = read(database, list_events)
    assert (event.severity, event.state, event.count) == ("critical", "open", 2)
    assert event.title == "Calibration has drifted on drafter at position 3 for domain=code"
    assert event.details["since"] == "2023-11-14T22:13:20.000Z"
    assert event.details["false_alarms_per_million_rows"] == 1.0
    database.run(lambda connection: acknowledge(connection, event.id, "anna"))
    done(database, [alarm("act"), alarm("warn")])
    assert read(database, list_events)[0].severity == "critical"
    assert read(database, list_events)[0].state == "acknowledged"
    done(database, [Resolve("drift", "mended")])
    assert read(database, list_events)[0].state == "resolved"


def test_a_warning_does_not_calm_an_alarm_that_acts(database: Database) -> None:
    registered(database, 7)
    acting = replace(started(SETTINGS), announced=("act",))
    done(database, [alarm("act")])
    done(database, [alarm("warn")], state=acting)
    (event,) = read(database, list_events)
    assert (event.severity, event.count) == ("critical", 1)


def test_a_warning_after_an_alarm_is_over_is_told(database: Database) -> None:
    registered(database, 7)
    done(database, [alarm("act"), Resolve("drift", "a new baseline"), alarm("warn")])
    newest, before = read(database, list_events)
    assert (before.severity, before.state) == ("critical", "resolved")
    assert (newest.severity, newest.state) == ("warning", "open")


def test_a_warning_raises_exploration_until_it_is_over(database: Database) -> None:
    registered(database, 7)
    warned = replace(started(SETTINGS), announced=("warn",))
    seen = read(database, state_of, DRAFTER)
    done(database, [alarm("warn")], state=warned)
    raised = read(database, state_of, DRAFTER)
    assert raised.drafter.explores_more
    assert read(database, list_events)[0].details["exploration_share"] == 0.005
    done(database, [], seen, state=warned)  # a loop that looked earlier asks once more
    assert read(database, state_of, DRAFTER) == raised
    done(database, [Resolve("drift", "calm")])
    assert not read(database, state_of, DRAFTER).drafter.explores_more
    promoted(database, challenger(database, 1.1, 0))
    done(database, [alarm("warn")], seen, state=warned)  # of a champion that is none any more
    assert not read(database, state_of, DRAFTER).drafter.explores_more


def test_a_lost_state_ends_the_loops_own_events_alone(database: Database) -> None:
    registered(database, 7)
    done(database, [alarm("act"), Hold("silence", "no row", "data_quality/silence")])
    with database.write() as connection:  # as a refused recalibration does
        open_event(
            connection, "data_quality", "warning", "refused", dedup_key="data_quality/drafter"
        )
        forget_alarms(connection, DRAFTER)
    states = {event.dedup_key: event.state for event in read(database, list_events)}
    assert states == {
        "drift/drafter": "resolved",
        "data_quality/drafter/silence": "resolved",
        "data_quality/drafter": "open",
    }


def test_holds_are_events_by_monitor(database: Database) -> None:
    registered(database, 7)
    done(database, [Hold("silence", "no row for 400 s", "data_quality/silence")])
    (event,) = read(database, list_events)
    assert event.dedup_key == "data_quality/drafter/silence"
    assert event.title == "Telemetry of drafter holds recalibration: silence"
    done(database, [Resolve("data_quality/silence", "rows again")])
    assert read(database, list_events)[0].state == "resolved"


def test_a_drafter_that_somebody_changed_meanwhile_is_not_promoted(database: Database) -> None:
    registered(database, 7)
    first, second = challenger(database, 1.1, 0), challenger(database, 1.2, 0)
    seen = read(database, state_of, DRAFTER)
    promoted(database, first)  # by hand, after the loop had looked
    with pytest.raises(PreconditionFailedError):
        done(database, [alarm("act"), Promote(second, "better", {})], seen)
    assert read(database, aliases, DRAFTER).champion == first
    assert "drift" not in [event.kind for event in read(database, list_events)]
