from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from api.settings import Settings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, dict[str, Any]]]:
    """What would have been started, instead of starting it."""
    found: list[tuple[Settings, dict[str, Any]]] = []

    def noted(settings: Settings, **options: Any) -> int:
        found.append((settings, options))
        return 0

    monkeypatch.setattr("api.service_process.run_service", noted)
    monkeypatch.setattr("api.service_process.run_worker_alone", noted)
    for name in ("PORT", "HOST", "ROLE", "CONFIG", "DATABASE_URL", "LOG_LEVEL"):
        monkeypatch.delenv(f"DSPARK_CALIB_{name}", raising=False)
    return found


def test_flag_before_environment_before_file_before_default(
    runner: CliRunner, started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "service.toml"
    file.write_text("port = 1001\nrecalibration_rows = 77\nlog_level = 'error'\n")
    monkeypatch.setenv("DSPARK_CALIB_PORT", "1002")
    monkeypatch.setenv("DSPARK_CALIB_RECALIBRATION_ROWS", "88")
    result = runner.invoke(app, ["serve", "--config", str(file), "--port", "1003"])
    assert result.exit_code == 0, result.stderr
    ((settings, _),) = started
    assert (settings.port, settings.recalibration_rows, settings.log_level) == (1003, 88, "error")
    assert settings.host == "127.0.0.1"


def test_a_folder_stands_for_its_database(runner: CliRunner, started: Any, tmp_path: Path) -> None:
    runner.invoke(app, ["serve", "--data", str(tmp_path / "kept"), "--retention-days", "none"])
    ((settings, options),) = started
    assert settings.database_url == f"sqlite:///{tmp_path}/kept/dspark-calib.db"
    assert settings.retention_days is None
    assert options == {"demo": False, "exit_after": False}


def test_the_demo_keeps_its_own_folder_and_quiet_logs(
    runner: CliRunner, started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["serve", "--demo", "--exit"]).exit_code == 0
    ((settings, options),) = started
    assert settings.database_url == f"sqlite:///{tmp_path}/out/service/dspark-calib.db"
    assert settings.log_level == "error"
    assert options == {"demo": True, "exit_after": True}


def test_a_worker_alone_is_another_start(runner: CliRunner, started: Any) -> None:
    runner.invoke(app, ["serve", "--role", "worker"])
    assert started[0][1] == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--exit"], "--exit"),
        (["--demo", "--role", "api"], "role all"),
        (["--demo", "--host", "0.0.0.0"], "127.0.0.1"),
        (["--data", "d", "--database-url", "sqlite:///x.db"], "either --data or --database-url"),
        (["--database-url", "mysql://x"], "sqlite:///path or postgresql://"),
        (["--config", "missing.toml"], "name a TOML file that exists"),
        (["--retention-days", "-1"], "retention_days"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    runner: CliRunner, started: Any, arguments: list[str], words: str
) -> None:
    result = runner.invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert started == []


def test_passwords_stay_out_of_messages(runner: CliRunner, started: Any) -> None:
    result = runner.invoke(app, ["serve", "--database-url", "mysql://user:secret@host/db"])
    assert "secret" not in result.stderr + result.stdout
