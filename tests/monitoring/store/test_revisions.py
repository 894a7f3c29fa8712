"""Revisions are numbered, immutable and whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calib.calibration import Calibration
from calib.errors import CalibrationValueError
from monitoring.store import revisions, tables
from monitoring.store.audit import list_audit
from monitoring.store.database import Database
from monitoring.store.drafters import get
from monitoring.store.errors import (
    ConflictError,
    NotFoundError,
    PreconditionFailedError,
    StoreError,
)
from tests.monitoring.store.store_fixtures import KEY, OTHER_KEY, registered, temperatures


def added(database: Database, *values: float) -> revisions.Revision:
    return database.run(
        lambda connection: revisions.add_revision(
            connection,
            "code",
            temperatures(*values),
            segments={"domain": {"code": [1.5]}},
            provenance={"rows": 100},
            actor="tests",
        )
    )


def test_revision_comes_back_as_it_was(database: Database) -> None:
    registered(database)
    evidence = {"ece": 0.012, "counts": [1, 2, 3]}
    made = replace(
        temperatures(1.5, 2.25, 0.123457), evidence=evidence, slopes=(1, 2, 3), intercepts=(0, 0, 1)
    )
    with database.write() as connection:
        revisions.add_revision(connection, "code", made, provenance={"rows": 9}, actor="tests")
    with database.read() as connection:
        found = revisions.get_revision(connection, "code", 1)
    assert found.calibration == replace(made, key=KEY)
    assert found.calibration.evidence["counts"] == (1, 2, 3)
    assert (found.number, found.provenance, found.segments) == (1, {"rows": 9}, None)
    assert found.created_by == "tests"


def test_equal_numbers_make_a_new_revision(database: Database) -> None:
    registered(database)
    first, second = added(database, 1.5, 2, 3), added(database, 1.5, 2, 3)
    assert (first.number, second.number) == (1, 2)
    assert first.calibration.digest == second.calibration.digest
    assert first.segments == {"domain": {"code": [1.5]}}


def test_calibration_of_another_drafter_is_refused(database: Database) -> None:
    registered(database)
    with pytest.raises(CalibrationValueError, match="gamma: got 2; drafter 'code' has gamma 3"):
        added(database, 1.5, 2)
    foreign = replace(Calibration.identity(3), key=OTHER_KEY)
    with pytest.raises(ConflictError, match="another key"), database.write() as connection:
        revisions.add_revision(connection, "code", foreign, provenance={}, actor="tests")
    with pytest.raises(NotFoundError), database.write() as connection:
        revisions.add_revision(connection, "none", foreign, provenance={}, actor="tests")


def test_pages_are_newest_first(database: Database) -> None:
    registered(database)
    for _ in range(4):
        added(database, 1, 2, 3)
    with database.read() as connection:
        page = revisions.list_revisions(connection, "code", before=None, limit=2)
        rest = revisions.list_revisions(connection, "code", before=page[-1].number, limit=9)
        assert [found.number for found in page + rest] == [4, 3, 2, 1, 0]
        with pytest.raises(NotFoundError, match="no revision 'code/5'"):
            revisions.get_revision(connection, "code", 5)
        with pytest.raises(NotFoundError, match="no drafter 'none'"):
            revisions.get_revision(connection, "none", 0)
        with pytest.raises(NotFoundError, match="no drafter 'none'"):
            revisions.list_revisions(connection, "none")


def test_challenger_is_set_replaced_and_cleared(database: Database) -> None:
    registered(database)
    added(database, 1.5, 2, 3)
    with database.write() as connection:
        drafter = revisions.set_challenger(
            connection, "code", 1, actor="tests", expected_version=1, request_id="r-1"
        )
        assert drafter.version == 2
        assert revisions.aliases(connection, "code").challenger == 1
        same = revisions.set_challenger(connection, "code", 1, actor="tests")
        assert same.version == 2
        assert revisions.set_challenger(connection, "code", None, actor="tests").version == 3
        assert revisions.aliases(connection, "code").challenger is None
        newest = list_audit(connection, drafter="code")
    assert newest[0].details == {"before": 1, "challenger": None}
    assert newest[1].request_id == "r-1"


def test_challenger_that_cannot_be(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        with pytest.raises(NotFoundError, match="no revision 'code/9'"):
            revisions.set_challenger(connection, "code", 9, actor="tests")
        with pytest.raises(ConflictError, match="champion already"):
            revisions.set_challenger(connection, "code", 0, actor="tests")
        with pytest.raises(PreconditionFailedError):
            revisions.set_challenger(connection, "code", None, actor="tests", expected_version=9)
        assert get(connection, "code").version == 1


@pytest.mark.parametrize("change", ["update", "delete"])
def test_database_refuses_changed_revisions(database: Database, change: str) -> None:
    registered(database)
    table = tables.revisions
    statement = table.update().values(digest="x") if change == "update" else table.delete()
    with pytest.raises(StoreError, match="revisions are immutable"), database.write() as connection:
        connection.execute(statement)
