from __future__ import annotations

from pathlib import Path

import pytest

from api.calibration_input import read_calibration
from calib.calibration import Calibration
from calib.errors import CalibrationValueError, FormatError
from calib.formats.sglang_sts import write_sts

FITTED = Calibration.from_temperatures([1.5, 1.25, 0.8], gamma=3)


def test_our_file_comes_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(FITTED.to_json() + b"\n")
    assert read_calibration(path, 3) == FITTED


def test_sglangs_file_gives_its_temperatures(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    write_sts(path, [1.5, 1.25, 0.8], dataset="d", num_samples=10, extra={"gamma": 3})
    found = read_calibration(path, 3)
    assert found.temperatures == (1.5, 1.25, 0.8)
    assert found.method == "manual"


def test_a_longer_calibration_gives_its_first_positions(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(FITTED.to_json())
    assert read_calibration(path, 2).temperatures == (1.5, 1.25)
    with pytest.raises(CalibrationValueError, match="gamma: got 4"):
        read_calibration(path, 4)


@pytest.mark.parametrize("content", [b"", b" \n", b"{", b"[1.0]", b'{"temperatures": [1, null]}'])
def test_broken_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(FormatError):
        read_calibration(path, 1)


def test_a_temperature_that_may_not_be_served(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_bytes(b'{"temperatures": [1.0, 900.0]}')
    with pytest.raises(CalibrationValueError, match="900"):
        read_calibration(path, 2)
