"""``import`` and ``export deepspec``, and ``export tensorrt-llm``, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from api.cli import app


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.output


def test_records_come_in_and_go_out(tmp_path: Path) -> None:
    lines, table, again = tmp_path / "r.jsonl", tmp_path / "t.parquet", tmp_path / "again.jsonl"
    lines.write_text('{"logits": [2.0, -1.0], "labels": [1, 0]}\n')
    code, said = run("import", "deepspec", str(lines), "--out", str(table))
    assert code == 0, said
    assert "1 rows, 0 cut at a stop token" in said
    assert run("export", "deepspec", str(table), "--out", str(again))[0] == 0
    assert json.loads(again.read_text()) == {"logits": [2.0, -1.0], "labels": [1, 0]}


def test_a_calibration_becomes_deepspecs_file(tmp_path: Path) -> None:
    sts, out = tmp_path / "sts.json", tmp_path / "calibration.json"
    sts.write_text('{"temperatures": [1.5, 2.0]}')
    assert run("export", "deepspec", str(sts), "--out", str(out))[0] == 0
    assert json.loads(out.read_text())["block_size"] == 2
