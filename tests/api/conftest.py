"""Telemetry files for the commands, and the service for its calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from calib.formats.arrow import write_parquet
from tests.support.service import Service, empty_database, running_service
from tests.support.telemetry import synthetic_records


@pytest.fixture
def runner() -> CliRunner:
    """Runs commands in this process; standard error apart from standard output."""
    return CliRunner()


@pytest.fixture(scope="session")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5,000 synthetic blocks of γ = 4, enough to publish every position."""
    path = tmp_path_factory.mktemp("telemetry") / "telemetry.parquet"
    write_parquet(synthetic_records(5000, gamma=4, prompts=200), path)
    return path


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service on an empty database, without tokens."""
    with running_service(empty_database(tmp_path)) as started:
        yield started
