from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from api.cli import app
from calib.calibration import Calibration
from calib.cost_table_files import dump_cost_table
from calib.cost_table_shapes import analytic_cost_table
from calib.formats.sglang_sts import write_sts
from tests.monitoring.reports.page_reading import at_pointer, read_page
from tests.support.telemetry import TEMPERATURES


@pytest.fixture
def report(runner: CliRunner, telemetry: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run ``report`` on the shared telemetry."""

    def run(*arguments: object) -> Any:
        words = [str(argument) for argument in arguments]
        out = str(tmp_path / "out")
        return runner.invoke(app, ["report", str(telemetry), "--out", out, *words])

    return run


@pytest.mark.slow
def test_raw_confidence_alone(report: Callable[..., Any], tmp_path: Path) -> None:
    result = report()
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("The survival error of raw confidence")
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert document["format"] == "dspark-calib/evaluation-report/1"
    assert document["calibration"]["status"] == "identity"
    assert not (tmp_path / "out" / "calibration.json").exists()


@pytest.mark.slow
def test_a_calibration_of_ours_and_of_sglang_judge_alike(
    report: Callable[..., Any], tmp_path: Path
) -> None:
    truth = Calibration.from_temperatures(TEMPERATURES[:4], gamma=4)
    ours, sglang = tmp_path / "ours.json", tmp_path / "sglang.json"
    ours.write_bytes(truth.to_json())
    write_sts(sglang, truth.temperatures)
    first = json.loads(report("--calibration", ours, "--json").stdout)
    second = json.loads(report("--calibration", sglang, "--json").stdout)
    assert first["evaluation"] == second["evaluation"]
    overall = first["evaluation"]["overall"]
    before = overall["raw"]["block"]["survival"]["value"]
    assert overall["calibrated"]["block"]["survival"]["value"] < before


@pytest.mark.slow
def test_a_page_and_a_picture_where_they_are_asked_for(
    report: Callable[..., Any], tmp_path: Path
) -> None:
    page, picture = tmp_path / "new" / "page.html", tmp_path / "picture.png"
    cost = tmp_path / "cost.json"
    cost.write_text(dump_cost_table(analytic_cost_table("smooth", max_batch_tokens=512)))
    result = report("--html", page, "--png", picture, "--cost-table", cost, "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["files"]["report to read"] == str(page)
    stored = json.loads((tmp_path / "out" / "report.json").read_text())
    shown = read_page(page.read_bytes())
    assert all(float(value) == at_pointer(stored, at) for at, value, _ in shown.numbers)
    assert stored["headline"] in shown.text
    with Image.open(picture) as opened:
        opened.verify()
    assert set(stored["throughput"]) >= {"reason"}
    assert {path.name for path in (tmp_path / "out").iterdir()}.isdisjoint(
        {"report.html", "reliability.png"}
    )


def test_a_cost_table_that_is_none_is_named(report: Callable[..., Any], tmp_path: Path) -> None:
    result = report("--cost-table", tmp_path / "none.json")
    assert result.exit_code == 2
    assert "none.json" in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"not json", "is no JSON"),
        (b'{"format": "x"}', "'format' is not"),
        (b'{"temperatures": [1.0, 1.0]}', "gamma: got 4; this calibration has 2 positions"),
        (b'{"temperatures": [1.0, 1.0, 1.0, -1.0]}', "must be above 0"),
    ],
)
def test_bad_calibration(
    report: Callable[..., Any], tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    result = report("--calibration", path)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_missing_calibration(report: Callable[..., Any]) -> None:
    result = report("--calibration", "none.json")
    assert result.exit_code == 2
    assert "none.json: No such file" in result.stderr
