"""INSERT … ON CONFLICT, which both dialects know and SQLAlchemy spells once for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite

__all__ = ["insert_for", "insert_or_skip"]


def insert_for(dialect: str, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert for this dialect with ``on_conflict_do_update`` and ``on_conflict_do_nothing``."""
    if dialect == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)


def insert_or_skip(
    connection: Connection, table: Table, values: Mapping[str, Any], key: Sequence[str]
) -> bool:
    """Insert a row unless one with its ``key`` exists; whether it was inserted.

    On PostgreSQL it waits for another transaction that is inserting the same key.
    """
    statement = insert_for(connection.dialect.name, table).values(**values)
    skipping = statement.on_conflict_do_nothing(index_elements=list(key))
    return connection.execute(skipping.returning(table.c[key[0]])).first() is not None
