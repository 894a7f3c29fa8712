"""Telemetry files shared by the command tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from calib.formats.arrow import write_parquet
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
