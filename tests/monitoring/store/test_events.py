"""One open event per cause."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from calib.errors import InvalidInputError
from monitoring.store import events
from monitoring.store.database import Database
from monitoring.store.errors import ConflictError, NotFoundError
from tests.monitoring.store.store_fixtures import registered


def report(database: Database, severity: events.Severity = "warning", n: int = 1) -> events.Event:
    return database.run(
        lambda connection: events.open_event(
            connection,
            "drift",
            severity,
            f"drift {n}",
            drafter="code",
            details={"n": n},
            dedup_key="drift:code",
        )
    )


def test_repeats_raise_the_count(database: Database) -> None:
    registered(database)
    first = report(database)
    assert (first.state, first.count, first.resolved_at) == ("open", 1, None)
    again = report(database, "critical", 2)
    assert (again.id, again.count, again.severity) == (first.id, 2, "critical")
    assert (again.title, again.details, again.opened_at) == ("drift 2", {"n": 2}, first.opened_at)
    assert again.updated_at >= first.updated_at


def test_acknowledged_event_stays_acknowledged_when_it_repeats(database: Database) -> None:
    registered(database)
    event = report(database)
    with database.write() as connection:
        seen = events.acknowledge(connection, event.id, "anna")
        assert (seen.state, seen.acknowledged_by) == ("acknowledged", "anna")
        assert events.acknowledge(connection, event.id, "bert").acknowledged_by == "anna"
    assert report(database).state == "acknowledged"


def test_resolved_event_makes_room_for_a_new_one(database: Database) -> None:
    registered(database)
    first = report(database)
    with database.write() as connection:
        resolved = events.resolve(connection, "drift:code")
        assert resolved is not None
        assert (resolved.state, resolved.resolved_at) == ("resolved", resolved.updated_at)
        assert events.resolve(connection, "drift:code") is None
        with pytest.raises(ConflictError, match="resolved already"):
            events.acknowledge(connection, first.id, "anna")
        with pytest.raises(NotFoundError, match="no event '999'"):
            events.acknowledge(connection, 999, "anna")
    assert report(database).id > first.id


def test_notice_is_resolved_from_the_start(database: Database) -> None:
    with database.write() as connection:
        notices = [events.open_event(connection, "start", "info", "started") for _ in range(2)]
    assert [notice.state for notice in notices] == ["resolved", "resolved"]
    assert notices[0].id != notices[1].id
    assert notices[0].resolved_at == notices[0].opened_at
    assert (notices[0].drafter, notices[0].dedup_key, notices[0].details) == (None, None, {})


def test_lists_are_newest_first(database: Database) -> None:
    registered(database)  # itself no event
    event = report(database)
    with database.write() as connection:
        notice = events.open_event(connection, "start", "info", "started")
        assert events.get_event(connection, notice.id) == notice
        assert events.list_events(connection) == [notice, event]
        assert events.list_events(connection, limit=1) == [notice]
        assert events.list_events(connection, before=notice.id) == [event]
        assert events.list_events(connection, drafter="code") == [event]
        assert events.list_events(connection, state="open") == [event]
        with pytest.raises(NotFoundError):
            events.get_event(connection, 999)


def test_severity_is_one_of_three(database: Database) -> None:
    with database.write() as connection, pytest.raises(InvalidInputError, match="severity"):
        events.open_event(connection, "x", "fatal", "x")  # type: ignore[arg-type]


def test_reports_at_once_are_one_event(database: Database) -> None:
    registered(database)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: report(database), range(12)))
    with database.read() as connection:
        (event,) = events.list_events(connection)
    assert event.count == 12


def test_every_kind_is_raised_somewhere_and_every_raised_kind_is_known() -> None:
    """By name in a call, or in a variable that the type checker holds to ``EventKind``."""
    folder = Path(events.__file__).resolve().parents[1]
    written: set[str] = set()
    for path in (*folder.rglob("*.py"), *(folder.parent / "api").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "open_event(" not in text or path == Path(events.__file__):
            continue
        tree = ast.parse(text)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        for call in calls:
            name = getattr(call.func, "attr", getattr(call.func, "id", ""))
            place = {"open_event": 1, "_notice": 2}.get(name)
            if place is not None and isinstance(call.args[place], ast.Constant):
                assert call.args[place].value in events.EVENT_KINDS, (path, call.lineno)
        written |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    assert set(events.EVENT_KINDS) <= written
