from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import calib.shipped
from api.cli import app
from calib.formats.arrow import write_parquet
from tests.support.telemetry import synthetic_records


def test_demo_does_the_main_job(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "telemetry.parquet"
    write_parquet(synthetic_records(8000, prompts=300), path, compact=True)
    monkeypatch.setattr(calib.shipped, "shipped_telemetry", lambda: path)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["demo"])
    assert result.exit_code in (0, 1), result.output
    for words in ("By domain, ", "By sampling temperature, ", "Over all positions", "isotonic"):
        assert words in result.stdout
    assert (tmp_path / "dspark-calib-demo" / "report.json").is_file()


def test_demo_without_its_data_says_so(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calib.shipped, "files", lambda package: tmp_path)
    result = runner.invoke(app, ["demo", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "is not part of this installation" in result.stderr
