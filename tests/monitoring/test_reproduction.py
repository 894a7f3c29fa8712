"""A revision's numbers made again: equal, other, or without the rows they came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete

from calib.calibration import Calibration
from monitoring.recalibration import recalibrate
from monitoring.reproduction import reproduce
from monitoring.store import tables
from monitoring.store.database import Database
from monitoring.store.errors import NotFoundError
from monitoring.store.revisions import Revision, add_revision, get_revision
from tests.monitoring.worker_support import DRAFTER, leased, read, registered, stored
from tests.support.telemetry import synthetic_records

GAMMA = 2


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Database:
    """Revision 1 from a window that leaves some of its oldest batch out; later rows came since."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    path.write_bytes(sqlite_template.read_bytes())
    database = Database.open(f"sqlite:///{path}")
    registered(database, GAMMA)
    stored(database, synthetic_records(3000, gamma=GAMMA, prompts=100), batches=3)
    options: dict[str, Any] = {"method": "sts", "rows": 2500, "minimum_rows": 500}
    outcome = recalibrate(database, leased(database, **options))
    assert outcome.revision == 1, outcome.result["reason"]
    stored(database, synthetic_records(400, gamma=GAMMA, prompts=20, seed=9), batches=1)
    return database


def altered(database: Database, **changes: Any) -> Revision:
    """Another revision that says the same of itself as revision 1, but for these changes."""
    first = read(database, get_revision, DRAFTER, 1)
    calibration = changes.pop("calibration", first.calibration)
    provenance = {**first.provenance, **changes}
    return database.run(
        lambda c: add_revision(c, DRAFTER, calibration, provenance=provenance, actor="test")
    )


def test_the_same_rows_give_the_same_numbers(fitted: Database) -> None:
    found = reproduce(fitted, DRAFTER, 1)
    assert (found.outcome, found.numbers, found.versions) == ("equal", {}, {})
    assert found.digest == found.digest_again
    assert found.window_digest == found.window_digest_again is not None


def test_other_numbers_are_shown_beside_the_stored_ones(fitted: Database) -> None:
    first = read(fitted, get_revision, DRAFTER, 1).calibration
    other = replace(first, temperatures=(3.0, *first.temperatures[1:]))
    versions = {"numpy": "1.0"}
    number = altered(fitted, calibration=other, versions=versions).number
    found = reproduce(fitted, DRAFTER, number)
    assert found.outcome == "differs"
    assert found.numbers["temperatures"]["stored"] == other.temperatures
    assert found.numbers["temperatures"]["again"] == first.temperatures
    assert found.versions["numpy"]["then"] == "1.0"
    assert "numpy" in found.reason


def test_what_no_fit_made_has_nothing_to_repeat(fitted: Database) -> None:
    assert reproduce(fitted, DRAFTER, 0).outcome == "no_fit"
    by_hand = Calibration.from_temperatures([1.5] * GAMMA, gamma=GAMMA)
    made = fitted.run(
        lambda c: add_revision(c, DRAFTER, by_hand, provenance={"kind": "manual"}, actor="test")
    )
    found = reproduce(fitted, DRAFTER, made.number)
    assert (found.outcome, found.digest_again) == ("no_fit", None)
    assert "manual" in found.reason
    with pytest.raises(NotFoundError):
        reproduce(fitted, DRAFTER, 99)


def test_rows_that_retention_removed_are_said_to_be_gone(fitted: Database) -> None:
    window = read(fitted, get_revision, DRAFTER, 1).provenance["window"]
    columns = tables.telemetry_batches.c
    fitted.run(lambda c: c.execute(delete(tables.telemetry_batches).where(columns.id == 1)))
    found = reproduce(fitted, DRAFTER, 1)
    assert found.outcome == "window_gone"
    assert "2,000 of 2,500 rows" in found.reason
    assert found.window_digest == window["digest"] != found.window_digest_again
