"""Every notebook runs as a script, draws what it names, and states no result in its text."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.py"))

# Decimals, percentages and counts of rows are results. Powers of ten and "95 %" are parameters.
_RESULT = re.compile(r"\d[.,]\d|(?<!95)\s%|\b\d+ (?:rows|blocks|tokens)\b")


def cells(path: Path) -> list[tuple[bool, str]]:
    """Whether it is text, and the source, of every cell after the header."""
    parts = re.split(r"^# %%(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [
        ("[markdown]" in head, body) for head, body in zip(parts[::2], parts[1::2], strict=True)
    ]


def test_there_are_six_and_the_index_names_them() -> None:
    index = (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 6
    assert all(f"({path.name})" in index for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_text_states_no_result(path: Path) -> None:
    found = cells(path)
    assert found[0][0], "a notebook begins with text"
    texts = [body for is_text, body in found if is_text]
    assert len(texts) >= 4
    # Commands in fences and addresses of files are no statements.
    prose = [
        re.sub(r"```.*?```|`[^`]*`|\([^)]*\.(?:py|md)\)", "", t, flags=re.DOTALL) for t in texts
    ]
    assert [word for text in prose for word in _RESULT.findall(text)] == []


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_draws(path: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DSPARK_CALIB_FIGURES": str(tmp_path),
        "MPLBACKEND": "Agg",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}",
    }
    for name in ("DSPARK_TELEMETRY", "DSPARK_GAMMA", "TRITON_INTERPRET"):
        environment.pop(name, None)
    command = [sys.executable, str(path)]
    # Half a minute on a quiet machine; the limit is for one that is not.
    found = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert len(found.stdout.splitlines()) >= 5
    named = re.findall(r'show\(figure, "(\w+)"\)', path.read_text(encoding="utf-8"))
    drawn = {image.stem: image.stat().st_size for image in tmp_path.glob("*.png")}
    assert set(drawn) == set(named)
    assert all(size > 5_000 for size in drawn.values())
