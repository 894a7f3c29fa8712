from __future__ import annotations

import pytest

from api.dashboard.fleet import PAGE_ROWS, FleetQuery, load_fleet
from api.dashboard.report_shelf import ReportShelf
from monitoring.store.database import Database
from tests.api.dashboard import seeding


@pytest.fixture
def dialect() -> str:
    """The queries are tested on both; this is about what is made of them."""
    return "sqlite"


@pytest.fixture
def fleet(database: Database) -> Database:
    for name, peak in (("calm-a", 0.5), ("loud", 7.0), ("calm-b", 0.2), ("near", 5.5)):
        seeding.register(database, name)
        seeding.save_drift(database, name, peak=peak)
    seeding.see_engines(database, "calm-b", 4, publication=1, silent=1)
    return database


def names(database: Database, **query: str) -> list[str]:
    with database.read() as connection:
        page = load_fleet(
            connection,
            ReportShelf(),
            FleetQuery.of(query),
            now=database.clock(),
            silent_after=180.0,
            stale_after=1800.0,
        )
    return [row.name for row in page.rows]


def test_the_most_urgent_come_first_and_the_order_can_be_turned(fleet: Database) -> None:
    assert names(fleet) == ["loud", "near", "calm-b", "calm-a"]  # calm-b has a silent engine
    assert names(fleet, order="turned") == ["calm-a", "calm-b", "near", "loud"]
    assert names(fleet, sort="name") == ["calm-a", "calm-b", "loud", "near"]
    assert names(fleet, sort="evidence") == ["loud", "near", "calm-a", "calm-b"]
    assert names(fleet, sort="engines")[0] == "calm-b"


def test_words_and_statuses_narrow_it(fleet: Database) -> None:
    assert names(fleet, q="CALM smollm2", sort="name") == ["calm-a", "calm-b"]
    assert names(fleet, q="calm absent") == []
    assert names(fleet, status="drift") == ["loud"]
    # What an address has no business to say is left out.
    assert len(names(fleet, status="'", sort="x", page="-1")) == 4


def test_pages_hold_fifty_and_end(database: Database) -> None:
    seeding.register(database, *(f"d-{index:02d}" for index in range(PAGE_ROWS + 2)))
    assert len(names(database, sort="name")) == PAGE_ROWS
    assert names(database, sort="name", page="2") == ["d-50", "d-51"]
    assert names(database, sort="name", page="999") == ["d-50", "d-51"]


def test_the_summary_counts_everything(fleet: Database) -> None:
    with fleet.read() as connection:
        page = load_fleet(
            connection,
            ReportShelf(),
            FleetQuery(text="loud"),
            now=fleet.clock(),
            silent_after=180.0,
            stale_after=1800.0,
        )
    assert page.summary == "4 drafters: 1 drift, 1 warning, 1 silent engines, 1 calibrated"
    assert (page.total, page.matched, page.engines.total) == (4, 1, 4)
    (row,) = page.rows
    assert row.spark is not None
    assert row.short_models == "SmolLM2-135M-Instruct ← smollm2-135m-dspark"


def test_addresses_say_only_what_is_unusual() -> None:
    query = FleetQuery.of({"q": "a&b", "page": "3"})
    assert query.address() == "/?q=a%26b&page=3"
    assert query.sorted_by("ece") == "/?q=a%26b&sort=ece"
    assert query.direction("ece") is None
    by_error = FleetQuery(sort="ece")
    assert (by_error.direction("ece"), by_error.sorted_by("ece")) == (
        "descending",
        "/?sort=ece&order=turned",
    )
    assert FleetQuery().address() == "/"
