"""Bring the tables to the newest form, also when several processes start at once.

``python -m monitoring.store.migrate`` does it for the address on standard input, for a process that
will not keep Alembic.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from monitoring.store.database import Database
from monitoring.store.errors import StoreError

# Alembic is imported where it works: a service that starts on current tables needs none of it.
if TYPE_CHECKING:
    from alembic.config import Config

__all__ = ["NEWEST", "configuration", "is_current", "upgrade"]

NEWEST: Final = "0005"
"""The last migration; a test compares it with the files."""


_ATTEMPTS: Final = 20  # on a slow disk the first of many starters may hold the lock for a while
_ADVISORY_LOCK: Final = 0x6473_7061_726B  # any number, the same in every release


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration for the shipped migrations, on ``connection`` where one is given."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def upgrade(database: Database) -> None:
    """Create or change tables until they have the newest form; nothing to do is fine.

    Several processes may call it at once: one works, the others wait for it. All migrations run in
    one transaction, so a process that dies half-way leaves the database as it was.

    Raises:
        StoreError: the tables come from a newer program, or the database failed.
    """
    if not is_current(database):
        database.run(_upgrade, attempts=_ATTEMPTS)


def is_current(database: Database) -> bool:
    """Whether the tables have the form this program was written for.

    Raises:
        StoreError: the database failed.
    """
    with database.read() as connection:
        try:
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalars()
            return set(found) == {NEWEST}
        except (OperationalError, ProgrammingError) as error:
            if "alembic_version" not in str(error.orig):
                raise
            return False


def _upgrade(connection: Connection) -> None:
    from alembic import command
    from alembic.runtime.migration import MigrationContext
    from alembic.util import CommandError

    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
        connection.execute(text("SET LOCAL statement_timeout = 0"))  # large tables take their time
    if MigrationContext.configure(connection).get_current_revision() == NEWEST:
        return
    try:
        command.upgrade(configuration(connection), "head")
    except CommandError as error:
        raise StoreError(
            f"the tables come from another release ({error})", "start that release or a newer one"
        ) from error


if __name__ == "__main__":
    upgrade(Database.open(sys.stdin.readline().strip()))
