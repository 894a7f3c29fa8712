"""What the client's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.stand_in_service import StandInService


@pytest.fixture
def service() -> Iterator[StandInService]:
    """A service that answers as the real one does; publication 1 is identity."""
    with StandInService() as running:
        yield running
