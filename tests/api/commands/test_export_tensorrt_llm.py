"""``dspark-calib export tensorrt-llm``."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from api.cli import app


def test_an_sts_file_gets_the_engines_own_key(tmp_path: Path) -> None:
    sts, out = tmp_path / "sts.json", tmp_path / "trt.json"
    sts.write_text('{"temperatures": [1.5, 2.0, 0.5], "revision": 4}')
    found = CliRunner().invoke(
        app, ["export", "tensorrt-llm", str(sts), "--out", str(out), "--gamma", "2"]
    )
    assert found.exit_code == 0, found.output
    written = json.loads(out.read_text())
    assert (written["sts_temperatures"], written["revision"]) == ([1.5, 2.0], 4)


def test_numbers_come_from_the_service(champion_of_d: str, tmp_path: Path) -> None:
    """A champion, a named revision, and a refusal that leaves the old file."""
    out = tmp_path / "trt.json"
    shared = ("export", "tensorrt-llm", "d", "--out", str(out), "--url", champion_of_d)
    for more, numbers, revision in (
        (("--gamma", "2"), [1.5, 1.25], 1),
        (("--revision", "0"), [1.0] * 7, 0),
    ):
        found = CliRunner().invoke(app, [*shared, *more])
        assert found.exit_code == 0, found.output
        written = json.loads(out.read_text())
        assert (written["sts_temperatures"], written["revision"]) == (numbers, revision)
        assert "temperatures" not in written
    before = out.read_text()
    assert CliRunner().invoke(app, [*shared, "--gamma", "9"]).exit_code == 1
    assert out.read_text() == before
