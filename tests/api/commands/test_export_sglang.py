"""``dspark-calib export sglang``: what SGLang's strict loader takes, from a service or a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import app
from calib.calibration import Calibration
from tests.support.sglang_calibration import load_as_sglang

NUMBERS = [1.5, 1.25, 1.0, 0.875, 0.75, 1.125, 2.0]  # of the champion


def run(runner: CliRunner, *arguments: Any) -> tuple[int, str]:
    result = runner.invoke(app, ["export", "sglang", *map(str, arguments)])
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.slow
def test_the_champion_a_revision_and_a_prefix(
    runner: CliRunner, champion_of_d: str, tmp_path: Path
) -> None:
    out = tmp_path / "sts.json"
    code, said = run(runner, "d", "-o", out, "--url", champion_of_d)
    assert code == 0, said
    assert load_as_sglang(out.read_bytes(), 7).temperatures == NUMBERS
    assert json.loads(out.read_bytes())["revision"] == 1
    assert run(runner, "d", "-o", out, "--url", champion_of_d, "--revision", 0)[0] == 0
    assert load_as_sglang(out.read_bytes(), 7).temperatures == [1.0] * 7
    code, said = run(runner, "d", "-o", out, "--url", champion_of_d, "--gamma", 5, "--json")
    assert json.loads(said)["temperatures"] == NUMBERS[:5]
    assert run(runner, "d", "-o", out, "--url", champion_of_d, "--identity")[0] == 0
    assert load_as_sglang(out.read_bytes(), 7).temperatures == [1.0] * 7


def test_a_refusal_leaves_the_old_file(
    runner: CliRunner, champion_of_d: str, tmp_path: Path
) -> None:
    out = tmp_path / "sts.json"
    out.write_text("old")
    shared = ("-o", out, "--url", champion_of_d)
    assert run(runner, "d", *shared, "--gamma", 9)[0] == 1  # R70: longer than what was fitted
    assert run(runner, "unknown", *shared)[0] == 2
    assert run(runner, "d", *shared, "--revision", 99)[0] == 2
    assert run(runner, "missing/file.json", *shared)[0] == 2
    assert out.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["sts.json"]


def test_every_file_with_a_calibration_in_it(runner: CliRunner, tmp_path: Path) -> None:
    calibration = Calibration.from_temperatures(NUMBERS, gamma=7)
    bodies: dict[str, Any] = {
        "calibration.json": calibration.to_dict(),
        "report.json": {"refusal": None, "calibration": calibration.to_dict()},
        "revision.json": {"drafter": "d", "revision": 3, "gamma": 7, "temperatures": NUMBERS},
        "sts_file.json": {"temperatures": NUMBERS, "dataset": "x", "num_samples": 9},
    }
    for name, body in bodies.items():
        source, out = tmp_path / name, tmp_path / "sts.json"
        source.write_text(json.dumps(body))
        code, said = run(runner, source, "-o", out)
        assert code == 0, said
        assert load_as_sglang(out.read_bytes(), 7).temperatures == NUMBERS, name
        assert run(runner, source, "-o", out, "--gamma", 9)[0] == 2


@pytest.mark.parametrize(
    "body",
    [
        {"refusal": "not_better", "calibration": {}},
        {"temperatures": [1.0, 0.0]},
        {"temperatures": [1.0, 99.0]},  # beyond what a service would publish
        {"temperatures": []},
        {},
    ],
)
def test_a_file_without_usable_numbers_is_refused(
    runner: CliRunner, tmp_path: Path, body: dict[str, Any]
) -> None:
    source = tmp_path / "x.json"
    source.write_text(json.dumps(body))
    assert run(runner, source, "-o", tmp_path / "sts.json")[0] == 2
    assert not (tmp_path / "sts.json").exists()
