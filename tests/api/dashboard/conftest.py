"""The databases of the store's tests, and one service for the pages that only read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.dashboard import seeding
from tests.monitoring.store.conftest import (  # noqa: F401 - fixtures are found by their names
    database,
    database_url,
    dialect,
    sqlite_template,
)
from tests.support.service import Service, empty_database, running_service


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without tokens that knows two drafters."""
    url = empty_database(tmp_path_factory.mktemp("dashboard"))
    with running_service(url) as service:
        service.client.headers["Accept"] = "text/html"
        for name in ("first", "second"):
            seeding.register(service.database, name)
        yield service
