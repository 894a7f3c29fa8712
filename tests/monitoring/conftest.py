"""The databases of the store's tests, for what works on top of the store."""

from __future__ import annotations

from tests.monitoring.store.conftest import (  # noqa: F401 - fixtures are found by their names
    database,
    database_url,
    dialect,
    sqlite_template,
)
