"""Alembic's entry point runs on the connection it is given, inside its transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from sqlalchemy import create_engine, inspect

from monitoring.store.migrate import configuration


def test_env_works_on_the_given_connection(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'plain.db'}")
    with engine.connect() as connection:
        with connection.begin():
            command.upgrade(configuration(connection), "head")
        assert "drafters" in inspect(connection).get_table_names()
    engine.dispose()
