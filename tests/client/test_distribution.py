"""The client's distribution: httpx and nothing else, on every Python from 3.9 on."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dspark_calib_client

ROOT = Path(__file__).resolve().parent.parent.parent
CLIENT = ROOT / "client"
PROJECT = tomllib.loads((CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted((CLIENT / "dspark_calib_client").glob("*.py"))

# Used where the caller brings them, never needed.
OPTIONAL = {"pyarrow"}


def test_httpx_is_the_only_dependency() -> None:
    names = [re.split(r"[<>=!~\s\[]", entry)[0] for entry in PROJECT["dependencies"]]
    assert names == ["httpx"]
    assert "optional-dependencies" not in PROJECT


def test_the_public_names() -> None:
    assert sorted(dspark_calib_client.__all__) == [
        "CalibrationClient",
        "ClientConfigurationError",
        "ClientError",
        "RankZeroBroadcaster",
        "Source",
        "State",
        "SteppedApplication",
        "TelemetryOptions",
        "Temperatures",
        "__version__",
        "apply_in_place",
        "key_digest",
        "refusal",
    ]
    assert all(hasattr(dspark_calib_client, name) for name in dspark_calib_client.__all__)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_the_oldest_python_can_read_it(path: Path) -> None:
    oldest = tuple(map(int, re.findall(r"\d+", PROJECT["requires-python"])))
    assert oldest == (3, 9)
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=oldest)
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    # Annotations are written as in newer Pythons, and must therefore never be evaluated.
    assert futures[0].module == "__future__"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_imports_itself_httpx_and_the_standard_library(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found |= {name.partition(".")[0] for name in names}
    assert found <= {*sys.stdlib_module_names, "httpx", "dspark_calib_client", *OPTIONAL}


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ["torch", "numpy", "pyarrow", "api", "calib", "heads", "monitoring"]
    script = f"import sys, dspark_calib_client; print(sorted(set({heavy!r}) & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(CLIENT)},
        cwd=CLIENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.strip() == "[]"


def test_types_are_announced() -> None:
    assert (CLIENT / "dspark_calib_client" / "py.typed").is_file()


def test_the_readme_names_every_public_class_and_function() -> None:
    text = (CLIENT / "README.md").read_text(encoding="utf-8")
    ignored = {"ClientError", "__version__"}
    assert [n for n in dspark_calib_client.__all__ if n not in text and n not in ignored] == []


def test_the_readme_examples_are_python() -> None:
    text = (CLIENT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        ast.parse(block)
