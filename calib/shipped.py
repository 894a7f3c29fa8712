"""Telemetry that comes with the package: a real drafter, a real target, everything verified.

What made it, and how to make it again, stands in the card beside the files.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from calib.errors import FormatError

__all__ = ["shipped_telemetry", "shipped_telemetry_early"]

_FOLDER = "data/smollm2_135m"


def shipped_telemetry() -> Path:
    """Parquet file of the drafter's blocks: γ = 7, three domains, three sampling temperatures.

    Raises:
        FormatError: the file is not part of this installation.
    """
    return _located("telemetry.parquet")


def shipped_telemetry_early() -> Path:
    """Parquet file of the same target with an earlier checkpoint of the drafter.

    Raises:
        FormatError: the file is not part of this installation.
    """
    return _located("telemetry_early.parquet")


def _located(name: str) -> Path:
    path = Path(str(files("calib").joinpath(_FOLDER, name)))
    if not path.is_file():
        raise FormatError(
            f"calib/{_FOLDER}/{name}",
            "is not part of this installation",
            "install the whole package, or record telemetry with 'dspark-calib record'",
        )
    return path
