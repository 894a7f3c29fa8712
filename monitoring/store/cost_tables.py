"""The cost table of a drafter's engines: steps per second against verified tokens, as sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from monitoring.store import audit, tables
from monitoring.store.database import current_time
from monitoring.store.drafter_rows import change, lock
from monitoring.store.fields import checked_text, json_text, read_json
from monitoring.store.upserts import insert_for

__all__ = ["StoredCostTable", "get_cost_table", "put_cost_table"]


@dataclass(frozen=True)
class StoredCostTable:
    """A cost table.

    Attributes:
        drafter: name of the drafter.
        document: plain JSON in a form that :mod:`calib.cost_table_files` reads.
        updated_at: seconds since the epoch.
        updated_by: who sent it.
    """

    drafter: str
    document: Mapping[str, Any]
    updated_at: float
    updated_by: str


def put_cost_table(
    connection: Connection,
    drafter: str,
    document: Mapping[str, Any],
    *,
    actor: str,
    expected_version: int | None = None,
    request_id: str | None = None,
) -> StoredCostTable:
    """The cost table that replaces the one before; raises the drafter's version.

    Raises:
        NotFoundError: no such drafter.
        PreconditionFailedError: the drafter has another version than expected.
        InvalidInputError: the document is no JSON.
    """
    state = lock(connection, drafter, expected_version)
    values: dict[str, Any] = {
        "updated_at": current_time(connection),
        "updated_by": checked_text("actor", actor),
        "document": json_text(document),
    }
    statement = insert_for(connection.dialect.name, tables.cost_tables).values(
        drafter=drafter, **values
    )
    connection.execute(statement.on_conflict_do_update(index_elements=["drafter"], set_=values))
    change(connection, state)
    audit.record(connection, actor, "put_cost_table", drafter, {}, request_id)
    return StoredCostTable(
        drafter, read_json(values["document"]), values["updated_at"], values["updated_by"]
    )


def get_cost_table(connection: Connection, drafter: str) -> StoredCostTable | None:
    """The drafter's cost table, or None."""
    query = select(tables.cost_tables).where(tables.cost_tables.c.drafter == drafter)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return StoredCostTable(row.drafter, read_json(row.document), row.updated_at, row.updated_by)
