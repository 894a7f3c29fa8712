from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api.cli import COMMANDS, GROUPS, app

ROOT = Path(__file__).resolve().parents[2]


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_lists_every_command(runner: CliRunner) -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in COMMANDS:
        assert (name in result.stdout) == (find_spec(f"api.commands.{name}") is not None)
    assert {"demo", "fit", "report", "serve", "promote", "rollback"} <= set(COMMANDS)
    assert all(name in result.stdout for name in GROUPS)


@pytest.mark.parametrize("name", ["demo", "fit", "report", "serve", "promote", "rollback"])
def test_every_option_is_described(runner: CliRunner, name: str) -> None:
    from typer.main import get_command

    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{name} {parameter.name} has no help"
    assert runner.invoke(app, [name, "--help"]).exit_code == 0


def test_every_option_of_a_group_is_described(runner: CliRunner) -> None:
    from typer.main import get_command

    group = get_command(app).commands["token"]  # type: ignore[attr-defined]
    assert set(group.commands) == {"create", "list", "revoke"}
    for name, command in group.commands.items():
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"token {name} {parameter.name} has no help"


def test_version(runner: CliRunner) -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("dspark-calib")


def test_unknown_command_and_option_are_bad_input(runner: CliRunner) -> None:
    assert runner.invoke(app, ["fits"]).exit_code == 2
    assert runner.invoke(app, ["fit", "x.parquet", "--fast"]).exit_code == 2
    assert runner.invoke(app, ["fit"]).exit_code == 2
    assert runner.invoke(app, ["fit", "x.parquet", "--method", "segments"]).exit_code == 2


def test_help_loads_none_of_the_heavy_libraries() -> None:
    heavy = (
        "fastapi",
        "httpx",
        "matplotlib",
        "numpy",
        "pandas",
        "pyarrow",
        "scipy",
        "sklearn",
        "torch",
    )
    heavy += ("rich.table", "sqlalchemy")
    script = (
        f"import api.cli, json, sys; print(json.dumps(sorted(set({heavy!r}) & set(sys.modules))))"
    )
    answer = python("-c", script)
    assert answer.returncode == 0, answer.stderr
    found = set(json.loads(answer.stdout))
    assert "torch" not in found
    assert found <= {"rich.table"}


@pytest.mark.slow
def test_a_real_process_fits_and_exits(telemetry: Path, tmp_path: Path) -> None:
    """Installed or not, optimised or not: the entry point, its exit code and no torch."""
    script = (
        "import sys\n"
        "from api.cli import main\n"
        f"sys.argv = ['dspark-calib', 'fit', {str(telemetry)!r}, '--out', 'out', '--no-references',"
        " '--minimum-rows', '100']\n"
        "try:\n    main()\n"
        "except SystemExit as leaving:\n"
        "    print('code', leaving.code, 'torch' in sys.modules)\n"
    )
    answer = python("-O", "-W", "error", "-c", script, cwd=tmp_path)
    assert answer.stdout.splitlines()[-1] == "code 0 False", answer.stderr
    assert "out/sglang_sts.json" in answer.stdout
    assert (tmp_path / "out" / "reliability.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_real_process_refuses_without_traceback(tmp_path: Path) -> None:
    (tmp_path / "foreign.parquet").write_bytes(b"date,accepted\n2024-01-01,3\n")
    script = "from api.cli import main; main()"
    answer = python("-O", "-c", script, "fit", "foreign.parquet", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: foreign.parquet: neither Parquet, Arrow nor")
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""
