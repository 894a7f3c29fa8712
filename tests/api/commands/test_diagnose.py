from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from api.commands.diagnose import diagnosis_lines


@pytest.mark.slow
def test_numbers_figures_and_words(runner: CliRunner, telemetry: Path, tmp_path: Path) -> None:
    out = tmp_path / "diagnosis"
    words = ["diagnose", str(telemetry), "-o", str(out), "--thresholds", "0,0.5", "--json"]
    result = runner.invoke(app, words)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    files = printed.pop("files")
    assert json.loads((out / "diagnosis.json").read_text()) == printed
    for name in ("acceptance", "accepted_length", "waste", "threshold_sweep"):
        assert Path(files[name]).read_bytes().startswith(b"\x89PNG")
    everything = printed["groups"][0]
    assert everything["name"] == "all"
    assert [point["threshold"] for point in everything["sweep"]] == [0.0, 0.5]
    lines = diagnosis_lines(printed)
    assert lines[0].startswith(f"all: {everything['rows']:,} blocks")
    assert f"accepted length {everything['accepted_length']:.2f}" in lines[0]
    assert lines[1].startswith("  threshold 0: ")
    assert lines[2].startswith("  threshold 0.5: ")


def test_bad_input_is_named(runner: CliRunner, telemetry: Path, tmp_path: Path) -> None:
    words = ["diagnose", str(telemetry), "-o", str(tmp_path), "--thresholds", "2"]
    wrong = runner.invoke(app, words)
    assert wrong.exit_code == 2
    assert "thresholds" in wrong.output
