from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import app
from api.commands.regret import regret_view
from calib.calibration import Calibration
from calib.cost_table_files import dump_cost_table
from calib.cost_table_staircase import StaircaseCostTable


@pytest.fixture
def vllm_table(tmp_path: Path) -> Path:
    path = tmp_path / "vllm.json"
    table = StaircaseCostTable(((1, 1.0),), ((16, 10.0), (64, 14.0), (256, 40.0)), graph_limit=256)
    path.write_text(dump_cost_table(table))
    return path


@pytest.mark.slow  # every arm is fitted, segments of three tags among them
def test_tables_and_document(
    runner: CliRunner, telemetry: Path, vllm_table: Path, tmp_path: Path
) -> None:
    given, out = tmp_path / "given.json", tmp_path / "regret.json"
    given.write_bytes(Calibration.identity(4).to_json())
    words = ["regret", str(telemetry), "--cost-table", str(vllm_table), "--loads", "2,32"]
    result = runner.invoke(app, [*words, "--calibration", str(given), "-o", str(out)])
    assert result.exit_code == 0, result.output
    document = json.loads(out.read_text())
    cells = document["study"]["cells"]
    assert {cell["curve"] for cell in cells} == {"vllm"}
    assert {cell["load"] for cell in cells} == {2, 32}
    mine = {(cell["load"], cell["arm"]): cell for cell in cells}
    assert mine[32, "given"]["theta"] == mine[32, "raw"]["theta"]
    # Every arm is a line, with its gain as in the document.
    gain = f"{100 * mine[32, 'segmented']['gain']:+.2f}"
    line = next(each for each in result.stdout.splitlines() if "segmented" in each)
    assert gain in line
    assert "blocks replayed" in result.stdout
    assert "-0.00" not in result.stdout


def test_a_document_of_trimmed_rows_says_what_rests_on_a_model() -> None:
    document = {
        "rows": {"judged": 10, "fit": 10},
        "split": {"column": "prompt"},
        "policy": "early_stop",
        "outcomes": {"kind": "doubly_robust"},
        "study": {
            "missing": {"sts": "trimmed"},
            "skipped": [{"load": 512, "curve": "own"}],
            "cells": [
                {
                    "curve": "own",
                    "load": 1,
                    "arm": "raw",
                    "gain": None,
                    "theta": 12.0,
                    "forecast_bias": 0.1,
                    "modelled_share": 0.25,
                }
            ],
        },
        "segments": {"reason": "nothing", "values": []},
    }
    words = [part for part in regret_view(document) if isinstance(part, str)]
    assert "Up to 25.0% of a cell's tokens rest on the model alone." in words
    assert "Left out: sts: trimmed" in words
    assert "Too few rows for 512 requests a step (own)." in words
    assert "No value by segment: nothing" in words


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--loads", "0"], "--loads"),
        (["--loads", "a"], "--loads"),
        (["--cost-table", "missing.json"], "missing.json"),
        (["--evaluate-share", "1.5"], "evaluation_share"),
    ],
)
def test_bad_input_is_named(
    runner: CliRunner, telemetry: Path, words: list[str], reason: str
) -> None:
    result = runner.invoke(app, ["regret", str(telemetry), *words])
    assert result.exit_code == 2
    assert reason in result.output
    assert "Traceback" not in result.output
