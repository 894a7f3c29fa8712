from __future__ import annotations

import pytest

from api.dashboard import fleet_queries
from api.dashboard.fleet_queries import EngineCounts, OpenEvents
from api.views import engine_view
from monitoring.store.database import Database
from monitoring.store.drafter_rows import state_of
from monitoring.store.engines import EngineSighting, list_engines, record_sightings
from monitoring.store.events import acknowledge
from monitoring.store.reports import put_report
from tests.api.dashboard import seeding

SILENT_AFTER = 180.0


@pytest.mark.slow
def test_engines_are_counted_as_the_api_calls_them(database: Database) -> None:
    for name in ("a", "b"):
        seeding.register(database, name)
    seeding.see_engines(database, "a", 6, publication=1, behind=2, silent=1)
    seeding.see_engines(database, "b", 1, publication=1)
    now = database.clock()
    plain = EngineSighting("a", "50%_off", None, None, None, None, now)
    with database.write() as connection:
        record_sightings(connection, [plain])
    with database.read() as connection:
        counts = fleet_queries.engine_counts(connection, now=now, silent_after=SILENT_AFTER)
        publication = state_of(connection, "a").publication
        called = [
            engine_view(row, publication=publication, now=now, silent_after=SILENT_AFTER).status
            for row in list_engines(connection, "a")
        ]
        only = fleet_queries.engine_counts(
            connection, now=now, silent_after=SILENT_AFTER, drafter="b"
        )
    assert counts["a"] == EngineCounts(on_champion=3, behind=2, silent=1, unreported=1)
    assert {name: called.count(name) for name in set(called)} == {
        "on_champion": 3,
        "behind": 2,
        "silent": 1,
        "unreported": 1,
    }
    assert only == {"b": EngineCounts(on_champion=1)}


def test_engines_that_need_a_look_come_first(database: Database) -> None:
    seeding.register(database, "a")
    seeding.see_engines(database, "a", 5, publication=1, behind=1, silent=1, prefix="e_")
    now = database.clock()

    def page(**more: object) -> list[str]:
        with database.read() as connection:
            rows = fleet_queries.engine_page(
                connection, "a", now=now, silent_after=SILENT_AFTER, **more
            )
        return [row.engine for row in rows]

    assert page() == ["e_1", "e_2", "e_3", "e_4", "e_5"]  # silent, behind, the others
    assert page(offset=1, limit=2) == ["e_2", "e_3"]
    assert page(status="on_champion") == ["e_3", "e_4", "e_5"]
    assert page(text="E_4") == ["e_4"]
    assert page(text="%") == []  # a letter like any other
    with database.read() as connection:
        nobody = fleet_queries.engine_page(connection, "No'", now=now, silent_after=1.0)
    assert nobody == []


def test_open_events_are_counted_by_drafter(database: Database) -> None:
    seeding.register(database, "a")
    seen = seeding.raise_event(database, "one", drafter="a")
    seeding.raise_event(database, "two", drafter="a", severity="warning")
    seeding.raise_event(database, "three", severity="warning")
    with database.write() as connection:
        acknowledge(connection, seen.id, "somebody")
    with database.read() as connection:
        found = fleet_queries.open_events(connection)
    assert found == {"a": OpenEvents(open=1, acknowledged=1, critical=1), "": OpenEvents(open=1)}


def test_reports_are_found_without_their_documents(database: Database) -> None:
    for name in ("a", "b"):
        seeding.register(database, name)
    with database.write() as connection:
        for name, at in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
            put_report(
                connection, name, "evaluation", b"{}", revision=0, through_batch=None, created_at=at
            )
        put_report(connection, "a", "other", b"{}", revision=0, through_batch=None, created_at=9.0)
    with database.read() as connection:
        newest = fleet_queries.newest_reports(connection)
        curve = fleet_queries.report_heads(connection, "a", limit=5)
        marks = fleet_queries.telemetry_marks(connection)
        documents = fleet_queries.drift_documents(connection)
    assert {name: head.created_at for name, head in newest.items()} == {"a": 3.0, "b": 2.0}
    assert [head.created_at for head in curve] == [1.0, 3.0]
    assert (marks["a"].rows, marks["a"].last_received_at) == (0, None)
    assert documents == {}
