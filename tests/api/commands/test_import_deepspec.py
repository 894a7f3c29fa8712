"""``dspark-calib import deepspec`` refuses what is no record; the way there and back is tested in
``test_export_deepspec.py``.
"""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from api.cli import app


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, list(arguments))
    return found.exit_code, found.output


def test_a_broken_line_is_bad_input(tmp_path: Path) -> None:
    lines = tmp_path / "r.jsonl"
    lines.write_text('{"logits": [2.0]}\n')
    code, said = run("import", "deepspec", str(lines), "--out", str(tmp_path / "t.parquet"))
    assert code == 2
    assert "r.jsonl:1" in said
