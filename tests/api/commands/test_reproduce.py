from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from monitoring.recalibration import recalibrate
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from tests.monitoring.worker_support import DRAFTER, leased, registered, stored
from tests.support.telemetry import synthetic_records


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a service with one recalibration."""
    folder = tmp_path_factory.mktemp("data")
    database = Database.open(f"sqlite:///{folder / 'dspark-calib.db'}")
    upgrade(database)
    registered(database, 2)
    stored(database, synthetic_records(3000, gamma=2, prompts=100), batches=2)
    outcome = recalibrate(database, leased(database, method="sts", minimum_rows=500))
    assert outcome.revision == 1
    database.close()
    return folder


def test_equal_numbers_end_with_0_and_what_is_no_fit_with_1(runner: CliRunner, data: Path) -> None:
    asked = ["reproduce", "--data", str(data), "--revision"]
    equal = runner.invoke(app, [*asked, f"{DRAFTER}:1"])
    assert equal.exit_code == 0, equal.output
    assert f"Revision 1 of {DRAFTER}: equal." in equal.output
    identity = runner.invoke(app, [*asked, f"{DRAFTER}:0", "--json"])
    assert identity.exit_code == 1
    assert json.loads(identity.stdout)["outcome"] == "no_fit"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--revision DRAFTER:N"),
        (["--revision", "nonsense"], "DRAFTER:N"),
        (["--revision", "unknown:1"], "unknown"),
        (["not-a-run"], "32 digits"),
        (["a" * 32, "--tracking-uri", "off"], "tracking_uri"),
        (["a" * 32], "nothing was mirrored there yet"),
        (["a" * 32, "--tracking-uri", "./mlruns"], "plain files"),
    ],
)
def test_what_is_mistyped_is_told_in_one_line(
    runner: CliRunner, data: Path, arguments: list[str], word: str
) -> None:
    answer = runner.invoke(app, ["reproduce", "--data", str(data), *arguments])
    assert answer.exit_code == 2
    assert word in answer.output


def test_a_database_that_is_not_there_is_not_made(runner: CliRunner, tmp_path: Path) -> None:
    answer = runner.invoke(app, ["reproduce", "--data", str(tmp_path), "--revision", "a:1"])
    assert answer.exit_code == 2
    assert "start the service" in answer.output
