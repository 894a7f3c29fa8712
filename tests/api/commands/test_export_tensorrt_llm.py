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
