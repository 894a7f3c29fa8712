"""The count of changes comes with the fifth migration and goes with it; drafters stay."""

from __future__ import annotations

from alembic import command
from sqlalchemy import inspect, text

from monitoring.store.database import Database
from monitoring.store.migrate import configuration


def test_a_drafter_of_an_older_release_explores_no_more_than_before(empty_url: str) -> None:
    database = Database.open(empty_url)
    with database.write() as connection:
        command.upgrade(configuration(connection), "0004")
        connection.execute(
            text(
                "INSERT INTO drafters (name, gamma, key_digest, key, version, created_at, champion,"
                " publication) VALUES ('code', 3, 'd', '{}', 1, 1, 0, 1)"
            )
        )
    for step, goal in ((command.upgrade, "0005"), (command.downgrade, "0004")):
        with database.write() as connection:
            step(configuration(connection), goal)
            columns = {column["name"] for column in inspect(connection).get_columns("drafters")}
            assert ("exploration_changes" in columns) == (goal == "0005")
            if goal == "0005":
                found = connection.execute(text("SELECT exploration_changes FROM drafters"))
                assert found.scalar() == 0
            assert connection.execute(text("SELECT count(*) FROM drafters")).scalar() == 1
    database.close()
