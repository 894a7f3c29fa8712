from __future__ import annotations

import json
from typing import Any

import pytest

from api.dashboard.fleet_queries import ReportHead, report_heads
from api.dashboard.report_document import PositionErrors
from api.dashboard.report_shelf import ReportShelf, shelf_of, worst_gap
from monitoring.store.database import Database
from monitoring.store.reports import put_report
from tests.api.dashboard import seeding
from tests.support.service import Service


@pytest.fixture
def dialect() -> str:
    """What is read back does not depend on the database."""
    return "sqlite"


def position(prediction: float, label: float, n: int = 10_000) -> dict[str, Any]:
    bins = [{"count": n, "mean_prediction": prediction, "mean_label": label}]
    return {"n": n, "mean_prediction": prediction, "mean_label": label, "bins": bins}


def put(database: Database, evaluation: Any) -> ReportHead:
    seeding.register(database, "a")
    document = {"revision": 1, "created_at": "2026-11-29T00:00:00Z", "evaluation": evaluation}
    with database.write() as connection:
        put_report(
            connection,
            "a",
            "evaluation",
            json.dumps(document).encode(),
            revision=1,
            through_batch=None,
            created_at=5.0,
        )
    with database.read() as connection:
        return report_heads(connection, "a", limit=1)[0]


def evaluation() -> dict[str, Any]:
    served = {
        "survival": {
            "positions": [position(0.70, 0.69), position(0.54, 0.50)],
            "weighted_mean": {"ece": 0.02, "null_level": 0.005},
        },
        "block": {"survival": {"value": 0.03, "low": 0.01, "high": 0.05}},
    }
    raw = {"survival": {"positions": [position(0.8, 0.69), position(0.6, 0.5)]}}
    return {"rows": 10_000, "overall": {"raw": raw, "calibrated": served}}


def test_a_summary_has_the_numbers_of_its_report(database: Database) -> None:
    head = put(database, evaluation())
    with database.read() as connection:
        found = ReportShelf().summary(connection, head)
    assert (found.revision, found.created_at, found.rows) == (1, 5.0, 10_000)
    assert (found.ece, found.perfect, found.error, found.error_high) == (0.02, 0.005, 0.03, 0.05)
    assert found.gap_position == 2
    assert found.gap == pytest.approx(0.04)


def test_what_was_read_once_is_not_read_again(database: Database) -> None:
    head = put(database, evaluation())
    shelf = ReportShelf()
    with database.read() as connection:
        first = shelf.document(connection, head)
        drawn = shelf.panels(connection, head, "survival")
    database.close()
    assert shelf.document(connection, head) is first
    assert shelf.panels(connection, head, "survival") is drawn
    assert [panel.position for panel in drawn] == [1, 2]


@pytest.mark.parametrize("broken", [None, {"rows": "many"}])
def test_a_report_without_numbers_is_one_all_the_same(database: Database, broken: Any) -> None:
    head = put(database, broken)
    with database.read() as connection:
        found = ReportShelf().summary(connection, head)
        panels = ReportShelf().panels(connection, head, "survival")
    assert (found.ece, found.gap, panels) == (None, None, [])


def test_chance_is_no_gap() -> None:
    def metrics(prediction: float, label: float, rows: float) -> PositionErrors:
        return PositionErrors(
            n=10**6, effective_n=rows, mean_prediction=prediction, mean_label=label
        )

    # Two standard errors of a share of one half: 2·√(0.25/2500) = 0.02.
    assert worst_gap([metrics(0.519, 0.5, 2500.0)]) is None
    assert worst_gap([metrics(0.4, 0.5, 2500.0), metrics(0.53, 0.5, 2500.0)]) == (
        1,
        pytest.approx(-0.1),
    )
    assert worst_gap([PositionErrors()]) is None


def test_each_application_has_one_shelf(shown: Service) -> None:
    assert shelf_of(shown.app) is shelf_of(shown.app)
