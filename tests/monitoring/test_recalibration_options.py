from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calib.errors import ConfigurationError
from monitoring.recalibration_options import RecalibrationOptions

ROOT = Path(__file__).resolve().parents[2]


def test_defaults_need_no_words() -> None:
    assert RecalibrationOptions.from_mapping({}) == RecalibrationOptions()
    assert RecalibrationOptions().to_mapping() == {}


def test_what_differs_from_the_defaults_comes_back() -> None:
    given = {"method": "temperature", "rows": 5000, "minimum_rows": 10, "evaluation_share": 0.25}
    options = RecalibrationOptions.from_mapping(given)
    assert options.to_mapping() == given
    assert RecalibrationOptions.from_mapping({"method": "sts"}).to_mapping() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "affine"),
        ("method", None),
        ("rows", 0),
        ("rows", True),
        ("rows", 1.5),
        ("rows", "100"),
        ("rows", 10**9),
        ("minimum_rows", -1),
        ("evaluation_share", 0.0),
        ("evaluation_share", 1.0),
        ("evaluation_share", float("nan")),
        ("evaluation_share", "half"),
        ("options", {"speed": 1}),
    ],
)
def test_a_wrong_option_is_named(name: str, value: Any) -> None:
    given = value if name == "options" else {name: value}
    with pytest.raises(ConfigurationError) as caught:
        RecalibrationOptions.from_mapping(given)
    assert caught.value.field == name


def test_ordering_a_recalibration_loads_no_numpy() -> None:
    script = "import monitoring.recalibration_options, sys; print('numpy' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"
