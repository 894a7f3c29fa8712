"""The drafter's row is locked, compared and changed as one thing."""

from __future__ import annotations

import pytest

from monitoring.store.database import Database
from monitoring.store.drafter_rows import all_states, change, lock, state_of
from monitoring.store.errors import NotFoundError, PreconditionFailedError, StoreError
from monitoring.store.tables import drafters
from tests.monitoring.store.store_fixtures import registered


def test_every_change_raises_the_version(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        state = lock(connection, "code", expected_version=1)
        changed = change(connection, state, publication=5)
    assert (changed.drafter.version, changed.publication) == (2, 5)
    with database.read() as connection:
        assert state_of(connection, "code") == changed
        assert all_states(connection) == [changed]


def test_lock_refuses_another_version(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        with pytest.raises(PreconditionFailedError) as caught:
            lock(connection, "code", expected_version=7)
        assert (caught.value.expected, caught.value.actual) == (7, 1)
        with pytest.raises(NotFoundError):
            lock(connection, "other")


@pytest.mark.parametrize("column", ["version", "publication"])
def test_database_refuses_numbers_that_go_back(database: Database, column: str) -> None:
    registered(database)
    with pytest.raises(StoreError, match="only grow"), database.write() as connection:
        connection.execute(drafters.update().values({column: 0}))
