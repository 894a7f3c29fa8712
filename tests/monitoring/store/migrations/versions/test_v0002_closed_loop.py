"""The closed loop's tables come with the second migration and go with it."""

from __future__ import annotations

from alembic import command
from sqlalchemy import inspect, text

from monitoring.store.database import Database
from monitoring.store.migrate import configuration
from tests.monitoring.store.store_fixtures import registered

_TABLES = {"monitor_states", "drafter_leases"}


def test_tables_come_and_go_and_what_was_there_stays(empty_url: str) -> None:
    database = Database.open(empty_url)
    with database.write() as connection:
        command.upgrade(configuration(connection), "head")
    registered(database)  # the store writes to the tables of every migration
    for step in (command.downgrade, command.upgrade, command.downgrade, command.upgrade):
        with database.write() as connection:
            step(configuration(connection), "0001" if step is command.downgrade else "0002")
            found = _TABLES & set(inspect(connection).get_table_names())
            assert found == (set() if step is command.downgrade else _TABLES)
            assert connection.execute(text("SELECT count(*) FROM drafters")).scalar() == 1
    database.close()
