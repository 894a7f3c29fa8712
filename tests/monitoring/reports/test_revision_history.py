from __future__ import annotations

from calib.calibration import Calibration
from monitoring.reports.revision_history import revision_history
from monitoring.store.database import Database
from monitoring.store.revisions import add_revision
from tests.monitoring.worker_support import DRAFTER, promoted, registered


def test_oldest_first_with_what_points_at_each(database: Database) -> None:
    registered(database, 2)
    for index in range(2):
        made = Calibration.from_temperatures([1.1 + index, 1.2], gamma=2)
        database.run(
            lambda connection, made=made: add_revision(
                connection, DRAFTER, made, provenance={}, actor="ada"
            )
        )
        promoted(database, index + 1)
    with database.read() as connection:
        found = revision_history(connection, DRAFTER)
    assert [entry["revision"] for entry in found] == [0, 1, 2]
    assert [entry["alias"] for entry in found] == [None, "previous", "champion"]
    assert found[2]["temperatures"] == [2.1, 1.2]
    assert (found[2]["method"], found[2]["created_by"]) == ("manual", "ada")
    assert found[0]["created_at"].endswith("Z")
