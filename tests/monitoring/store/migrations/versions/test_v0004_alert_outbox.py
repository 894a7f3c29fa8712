"""The tables of alerts and silences come with the fourth migration and go with it."""

from __future__ import annotations

from alembic import command
from sqlalchemy import inspect, text

from monitoring.store.database import Database
from monitoring.store.migrate import configuration

_TABLES = {"alert_notices", "alert_deliveries", "alert_receivers", "silences"}


def test_tables_come_and_go_and_events_stay(empty_url: str) -> None:
    database = Database.open(empty_url)
    with database.write() as connection:
        command.upgrade(configuration(connection), "0003")
        connection.execute(
            text(
                "INSERT INTO events (kind, severity, title, details, state, opened_at, updated_at,"
                " count) VALUES ('drift', 'info', 'x', '{}', 'open', 1, 1, 1)"
            )
        )
    for step, goal in ((command.upgrade, "0004"), (command.downgrade, "0003")):
        with database.write() as connection:
            step(configuration(connection), goal)
            found = _TABLES & set(inspect(connection).get_table_names())
            assert found == (_TABLES if goal == "0004" else set())
            assert connection.execute(text("SELECT count(*) FROM events")).scalar() == 1
    database.close()
