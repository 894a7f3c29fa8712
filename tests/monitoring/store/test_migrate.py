"""Migrations: from nothing to the tables of this release, once, whoever starts first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import alembic.op
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

import monitoring.store.migrations
from monitoring.store.database import Database
from monitoring.store.errors import StoreError, StoreUnavailableError
from monitoring.store.migrate import NEWEST, configuration, is_current, upgrade
from monitoring.store.tables import metadata
from tests.monitoring.store.store_fixtures import registered
from tests.monitoring.store.store_processes import ROOT, run


def test_empty_database_becomes_current_and_stays_so(empty_url: str) -> None:
    database = Database.open(empty_url)
    assert not is_current(database)
    upgrade(database)
    assert is_current(database)
    registered(database)
    upgrade(database)
    registered(database)
    database.close()


def test_migrated_tables_are_those_of_the_code(database: Database) -> None:
    with database.write() as connection:
        # SQLite keeps no trace of how a key grows.
        options = {"compare_server_default": database.dialect == "postgresql"}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


@pytest.mark.slow
def test_processes_that_start_at_once_on_an_empty_database(empty_url: str) -> None:
    said = run("upgrades", empty_url, count=8)
    assert sorted(line["index"] for line in said) == list(range(8))
    assert all(line["current"] for line in said)
    database = Database.open(empty_url)
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM drafters")).scalar() == 8
    database.close()


@pytest.mark.slow
def test_upgrade_that_dies_leaves_nothing_behind(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.open(empty_url)
    create_table = alembic.op.create_table

    def dying(name: str, *columns: Any, **options: Any) -> Any:
        if name == "drafter_leases":  # the first migration is done, the second half-way
            raise InterruptedError
        return create_table(name, *columns, **options)

    with monkeypatch.context() as patched:
        patched.setattr("alembic.op.create_table", dying)
        with pytest.raises(InterruptedError):
            upgrade(database)
    assert not is_current(database)
    with database.read() as connection:
        assert inspect(connection).get_table_names() == []
    with pytest.raises(StoreUnavailableError, match="run the migrations"):
        registered(database)
    upgrade(database)
    registered(database)
    database.close()


def test_tables_of_a_newer_release_are_left_alone(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    assert not is_current(database)
    with pytest.raises(StoreError, match="come from another release"):
        upgrade(database)
    with database.read() as connection:
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    assert found == "9999"


def test_newest_is_the_last_file_and_history_is_one_line() -> None:
    scripts = ScriptDirectory.from_config(configuration())
    assert scripts.get_heads() == [NEWEST]
    newest_first = list(scripts.walk_revisions())
    names = [f"v{script.revision}_" for script in reversed(newest_first)]
    files = sorted(path.name for path in Path(scripts.versions).glob("v*.py"))
    assert [name[: len("v0000_")] for name in files] == names
    befores = [script.down_revision for script in newest_first]
    assert befores == [*(script.revision for script in newest_first[1:]), None]


def test_migrations_are_found_beside_the_package() -> None:
    folder = Path(str(monitoring.store.migrations.__file__)).parent
    assert configuration().get_main_option("script_location") == str(folder)
    assert (folder / "env.py").exists()


def test_alembic_is_not_imported_on_current_tables(sqlite_url: str) -> None:
    script = (
        "import sys\n"
        "from monitoring.store.database import Database\n"
        "from monitoring.store.migrate import upgrade\n"
        f"upgrade(Database.open({sqlite_url!r}))\n"
        "heavy = ('alembic', 'matplotlib', 'mlflow', 'pandas', 'psycopg', 'scipy', 'torch')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", script]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
