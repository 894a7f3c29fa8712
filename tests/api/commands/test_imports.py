from __future__ import annotations

from importlib.util import find_spec

from typer.testing import CliRunner

from api.cli import app
from api.commands.imports import FORMATS


def test_every_format_that_is_there_is_a_command(runner: CliRunner) -> None:
    said = runner.invoke(app, ["import", "--help"]).stdout
    there = [name for name in FORMATS if find_spec(f"api.commands.import_{name}") is not None]
    assert "sglang" in there
    assert all(name.replace("_", "-") in said for name in there)
