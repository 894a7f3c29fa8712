from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from api.dashboard.drafter import DrafterPage, evidence_sentence, load_drafter
from api.dashboard.report_shelf import ReportShelf
from calib.calibration import Calibration
from monitoring.store.database import Database
from monitoring.store.errors import NotFoundError
from monitoring.store.reports import put_report
from monitoring.store.revisions import Revision
from tests.api.dashboard import seeding


@pytest.fixture
def dialect() -> str:
    """The queries are tested on both; this is about what is made of them."""
    return "sqlite"


@pytest.fixture
def drafter(database: Database) -> Database:
    seeding.register(database, "a")
    return database


def load(database: Database, **more: Any) -> DrafterPage:
    with database.read() as connection:
        return load_drafter(
            connection,
            ReportShelf(),
            "a",
            now=database.clock(),
            silent_after=180.0,
            stale_after=1800.0,
            **more,
        )


def test_a_new_drafter_has_a_page(drafter: Database) -> None:
    page = load(drafter)
    assert (page.status.word, page.headline) == ("collecting", "No telemetry has come yet.")
    assert [row.temperature for row in page.positions] == [1.0] * 7
    assert (page.errors, page.evidence, page.tests, page.segments, page.engines) == ([],) * 5
    with pytest.raises(NotFoundError), drafter.read() as connection:
        load_drafter(connection, ReportShelf(), "b", now=0.0, silent_after=1.0, stale_after=1.0)


def test_tests_stand_beside_their_positions_and_segments(drafter: Database) -> None:
    seeding.save_drift(drafter, "a", peak=7.2)
    page = load(drafter)
    assert page.tests[0].position == 3
    assert [row.test.evidence_log10 for row in page.positions if row.test][2] == 7.2
    (segment,) = page.segments
    assert (segment.name, segment.is_crossed) == ("domain=chat", False)
    assert segment.test is not None


def test_evidence_starts_anew_with_a_champion(drafter: Database) -> None:
    points = [
        {"at": "2026-11-29T00:00:00Z", "rows": rows, "evidence_log10_max": 1.0}
        for rows in (100, 900, 50, 60)
    ]
    seeding.save_drift(drafter, "a", history=points)
    assert [point.rows for point in load(drafter).evidence] == [50, 60]
    # And none of the one before is shown while it has too few rows for a point.
    seeding.save_drift(drafter, "a", history=points, rows=12)
    assert load(drafter).evidence == []


def test_the_error_curve_comes_from_the_loop_or_from_reports(drafter: Database) -> None:
    for number, error in ((1.0, 0.03), (2.0, 0.02)):
        served = {"block": {"survival": {"value": error, "low": 0.01, "high": 0.05}}}
        overall = {"raw": served, "calibrated": served}
        document = {"revision": 0, "created_at": "x", "evaluation": {"overall": overall}}
        with drafter.write() as connection:
            put_report(
                connection,
                "a",
                "evaluation",
                json.dumps(document).encode(),
                revision=0,
                through_batch=None,
                created_at=number,
            )
    found = load(drafter).errors
    assert [(p.at, p.value, p.low, p.high) for p in found] == [
        (1.0, 0.03, 0.01, 0.05),
        (2.0, 0.02, 0.01, 0.05),
    ]
    seeding.save_drift(drafter, "a")
    assert len(load(drafter).errors) == 60


def test_revisions_come_a_page_at_a_time(drafter: Database) -> None:
    for _ in range(9):
        seeding.add_revision(drafter, "a", [1.5] * 7)
    page = load(drafter)
    assert [row.revision.number for row in page.revisions] == [9, 8, 7, 6, 5, 4, 3, 2]
    assert page.older_revisions == 2
    older = load(drafter, revisions_before=2)
    assert [row.revision.number for row in older.revisions] == [1, 0]
    assert older.older_revisions is None
    assert older.revisions[1].aliases == ("champion",)


def revision(evidence: dict[str, Any]) -> Revision:
    made = Calibration.from_temperatures([1.5], gamma=1)
    return Revision("a", 1, replace(made, evidence=evidence), None, {}, 0.0, "x")


def test_evidence_is_one_sentence() -> None:
    errors = {"before": 0.0109, "after": 0.0102, "perfect": 0.0053}
    found = evidence_sentence(revision({"held_out": {"survival_ece": errors, "champion": 0}}))
    assert found == (
        "Held-out survival ECE 1.1 → 1.0 points against revision 0; perfect would be 0.5"
    )
    assert evidence_sentence(revision({})) is None
    assert evidence_sentence(revision({"held_out": {"survival_ece": None}})) is None
