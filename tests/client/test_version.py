"""The distribution, the package and its polls name one version."""

from __future__ import annotations

import tomllib
from pathlib import Path

import dspark_calib_client
from dspark_calib_client.version import VERSION

PROJECT = Path(__file__).resolve().parent.parent.parent / "client" / "pyproject.toml"


def test_the_version_is_one() -> None:
    declared = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    assert declared == VERSION == dspark_calib_client.__version__
