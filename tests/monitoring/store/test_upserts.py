"""INSERT … ON CONFLICT on both databases."""

from __future__ import annotations

from monitoring.store import tables
from monitoring.store.database import Database
from monitoring.store.upserts import insert_for, insert_or_skip


def token(identifier: str, name: str) -> dict[str, object]:
    values = {"id": identifier, "name": name, "scopes": "operate", "secret_sha256": "0"}
    return values | {"created_at": 1.0}


def test_insert_or_skip_says_whether_it_inserted(database: Database) -> None:
    with database.write() as connection:
        assert insert_or_skip(connection, tables.tokens, token("a", "one"), ["id"])
        assert not insert_or_skip(connection, tables.tokens, token("a", "two"), ["id"])
        rows = connection.execute(tables.tokens.select()).all()
    assert [row.name for row in rows] == ["one"]


def test_insert_for_updates(database: Database) -> None:
    with database.write() as connection:
        for name in ("one", "two"):
            statement = insert_for(database.dialect, tables.tokens).values(token("a", name))
            connection.execute(
                statement.on_conflict_do_update(index_elements=["id"], set_={"name": name})
            )
        assert connection.execute(tables.tokens.select()).one().name == "two"
