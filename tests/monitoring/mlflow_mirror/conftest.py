"""The databases of the store's tests, for what mirrors them."""

from __future__ import annotations

from tests.monitoring.store.conftest import (  # noqa: F401 - fixtures are found by their names
    sqlite_template,
    sqlite_url,
)
