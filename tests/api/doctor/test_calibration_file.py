"""The file as SGLang would take it, and as the service would have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api.doctor.calibration_file import file_findings
from api.doctor.findings import Level
from calib.formats.sglang_sts import sts_bytes

CHAMPION: dict[str, Any] = {"revision": 4, "temperatures": [1.5, 2.0, 0.5]}


def levels(path: Path, gamma: int | None = 3, champion: Any = CHAMPION) -> dict[str, Level]:
    found = file_findings(path, gamma=gamma, champion=champion)
    return {entry.check: entry.level for entry in found}


def test_the_file_that_is_served(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_bytes(sts_bytes([1.5, 2.0, 0.5]))
    assert levels(path) == {"file": Level.OK, "file_stale": Level.OK}


def test_a_stale_file_and_another_gamma(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_bytes(sts_bytes([1.5, 2.0], extra={"revision": 3}))
    assert levels(path)["file_gamma"] is Level.FAIL
    path.write_bytes(sts_bytes([1.0, 1.0, 1.0]))
    found = levels(path)
    assert (found["file_stale"], found["identity_only"]) == (Level.WARN, Level.OK)


def test_a_file_that_sglang_refuses(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_text('{"temperatures": [1.0, NaN]}')
    assert levels(path) == {"file": Level.FAIL}
    path.write_bytes(sts_bytes([1.0, 90.0, 1.0]))
    assert levels(path)["file_range"] is Level.FAIL
