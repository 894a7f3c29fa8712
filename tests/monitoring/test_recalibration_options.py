from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from calib.errors import ConfigurationError
from monitoring.recalibration_options import FrozenBatches, RecalibrationOptions

ROOT = Path(__file__).resolve().parents[2]


def test_defaults_need_no_words() -> None:
    assert RecalibrationOptions.from_mapping({}) == RecalibrationOptions()
    assert RecalibrationOptions().to_mapping() == {}


def test_what_differs_from_the_defaults_comes_back() -> None:
    given = {
        "method": "temperature",
        "rows": 5000,
        "minimum_rows": 10,
        "evaluation_share": 0.25,
        "window": {"from_batch": 3},
        "largest_tenant_share": 1,
        "reason": "drift",
        "promote": "never",
    }
    options = RecalibrationOptions.from_mapping(given)
    assert options.to_mapping() == given
    assert options.window == FrozenBatches(3, None)
    assert RecalibrationOptions.from_mapping(options.to_mapping()) == options
    assert RecalibrationOptions.from_mapping({"method": "auto"}).to_mapping() == {}
    assert RecalibrationOptions.from_mapping({"window": {}}).to_mapping() == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", "magic"),
        ("promote", "always"),
        ("reason", ""),
        ("reason", "x" * 513),
        ("reason", 7),
        ("largest_tenant_share", 0),
        ("largest_tenant_share", True),
        ("largest_tenant_share", 1.5),
        ("window", 7),
        ("window", {"newest": 3}),
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


@pytest.mark.parametrize(
    ("window", "field"),
    [
        ({"from_batch": -1}, "window.from_batch"),
        ({"through_batch": 1.5}, "window.through_batch"),
        ({"through_batch": True}, "window.through_batch"),
        ({"from_batch": 9, "through_batch": 8}, "window.through_batch"),
    ],
)
def test_a_wrong_window_is_named(window: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecalibrationOptions(window=window)
    assert caught.value.field == field


def test_ordering_a_recalibration_loads_no_numpy() -> None:
    script = "import monitoring.recalibration_options, sys; print('numpy' in sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("source", {"source": "memory"}),
        ("hours", {"hours": 3}),
        ("half_life_hours", {"half_life_hours": 1.0}),
        ("hours", {"source": "sketches", "hours": 0}),
        ("hours", {"source": "sketches", "hours": True}),
        ("half_life_hours", {"source": "sketches", "half_life_hours": 0.0}),
        ("half_life_hours", {"source": "sketches", "half_life_hours": float("nan")}),
        ("half_life_hours", {"source": "sketches", "half_life_hours": "1"}),
        ("method", {"source": "sketches", "method": "segments"}),
        ("promote", {"source": "sketches", "promote": "guard"}),
        ("rows", {"source": "sketches", "rows": 10}),
        ("evaluation_share", {"source": "sketches", "evaluation_share": 0.3}),
        ("window.through_batch", {"source": "sketches", "window": {"through_batch": 3}}),
    ],
)
def test_what_sketches_cannot_do_is_refused(name: str, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecalibrationOptions.from_mapping(values)
    assert caught.value.field == name


def test_options_of_sketches_come_back() -> None:
    given = {
        "source": "sketches",
        "hours": 6,
        "half_life_hours": 12,
        "window": {"from_batch": 3},
        "promote": "never",
    }
    assert RecalibrationOptions.from_mapping(given).to_mapping() == given
