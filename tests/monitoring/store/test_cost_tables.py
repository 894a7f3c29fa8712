"""Cost tables are kept as sent, and a new one is a new version of the drafter."""

from __future__ import annotations

import pytest

from calib.errors import InvalidInputError
from monitoring.store.audit import list_audit
from monitoring.store.cost_tables import get_cost_table, put_cost_table
from monitoring.store.database import Database
from monitoring.store.drafters import get
from monitoring.store.errors import NotFoundError, PreconditionFailedError
from tests.monitoring.store.store_fixtures import registered


def test_cost_table_replaces_the_one_before(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        assert get_cost_table(connection, "code") is None
        put_cost_table(connection, "code", {"points": [[1, 0.5]]}, actor="anna")
        document = {"points": [[1, 0.25], [8, 2]], "form": "flat"}
        stored = put_cost_table(connection, "code", document, actor="bert", expected_version=2)
        assert get(connection, "code").version == 3
        assert list_audit(connection)[0].action == "put_cost_table"
    with database.read() as connection:
        assert get_cost_table(connection, "code") == stored
    assert (stored.document, stored.updated_by) == (document, "bert")


def test_refusals(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        with pytest.raises(NotFoundError):
            put_cost_table(connection, "none", {}, actor="anna")
        with pytest.raises(PreconditionFailedError):
            put_cost_table(connection, "code", {}, actor="anna", expected_version=9)
        with pytest.raises(InvalidInputError):
            put_cost_table(connection, "code", {"x": float("inf")}, actor="anna")
        assert get(connection, "code").version == 1
