"""Audit rows are added and never touched again."""

from __future__ import annotations

import pytest

from calib.errors import InvalidInputError
from monitoring.store import audit, tables
from monitoring.store.database import Database
from monitoring.store.errors import StoreError


def test_rows_come_back_newest_first(database: Database) -> None:
    with database.write() as connection:
        audit.record(connection, "anna", "create_token", details={"token": "x"})
        audit.record(connection, "bert", "publish", "code", {"n": 1}, "r-1")
        audit.record(connection, "worker", "publish", "chat")
    with database.read() as connection:
        rows = audit.list_audit(connection)
        assert [row.actor for row in rows] == ["worker", "bert", "anna"]
        assert audit.list_audit(connection, drafter="code") == [rows[1]]
        assert audit.list_audit(connection, before=rows[1].id, limit=5) == [rows[2]]
        assert audit.list_audit(connection, limit=1) == rows[:1]
    assert (rows[1].details, rows[1].request_id, rows[1].drafter) == ({"n": 1}, "r-1", "code")
    assert (rows[2].drafter, rows[2].request_id) == (None, None)
    assert rows[0].at >= rows[2].at > 1.7e9


def test_impossible_texts_are_refused(database: Database) -> None:
    with database.write() as connection:
        with pytest.raises(InvalidInputError, match="actor"):
            audit.record(connection, "", "publish")
        with pytest.raises(InvalidInputError, match="request_id"):
            audit.record(connection, "anna", "publish", request_id="a\0b")


@pytest.mark.parametrize("change", ["update", "delete"])
def test_database_refuses_changes(database: Database, change: str) -> None:
    database.run(lambda connection: audit.record(connection, "anna", "publish"))
    statement = tables.audit.update().values(actor="bert")
    with pytest.raises(StoreError, match="audit are immutable"):
        database.run(
            lambda c: c.execute(statement if change == "update" else tables.audit.delete())
        )
