"""The outbox comes with the third migration and goes with it."""

from __future__ import annotations

from alembic import command
from sqlalchemy import inspect, text

from monitoring.store.database import Database
from monitoring.store.migrate import configuration

_TABLES = {"tracking_outbox", "tracking_totals"}


def test_tables_come_and_go_and_the_row_of_totals_with_them(empty_url: str) -> None:
    database = Database.open(empty_url)
    with database.write() as connection:
        command.upgrade(configuration(connection), "0002")
        assert not _TABLES & set(inspect(connection).get_table_names())
    for step in (command.upgrade, command.downgrade, command.upgrade):
        back = step is command.downgrade
        with database.write() as connection:
            step(configuration(connection), "0002" if back else "0003")
            found = _TABLES & set(inspect(connection).get_table_names())
            assert found == (set() if back else _TABLES)
    with database.read() as connection:
        row = connection.execute(text("SELECT enabled, delivered FROM tracking_totals")).one()
    assert tuple(row) == (1, 0)
    database.close()
