from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.calibration_values import (
    checked_gamma,
    checked_numbers,
    checked_scales,
    finite_number,
)
from calib.errors import CalibrationValueError

R69 = [
    ([1.0, float("nan")], "temperatures[1]"),
    ([1e400], "temperatures[0]"),
    ([10**400], "temperatures[0]"),
    ([0], "temperatures[0]"),
    ([-1], "temperatures[0]"),
    ([], "temperatures"),
    ("1.0", "temperatures"),
    ([True], "temperatures[0]"),
    ([np.True_], "temperatures[0]"),
    (["1.5"], "temperatures[0]"),
    ([None], "temperatures[0]"),
    (None, "temperatures"),
    ({"1": 1.0}, "temperatures"),
    (1.5, "temperatures"),
    ([1.0, 1.0, 1.0], "temperatures"),
    ([[1.0]], "temperatures[0]"),
    ([0.04999], "temperatures[0]"),
    ([20.001], "temperatures[0]"),
]


@pytest.mark.parametrize(("values", "field"), R69, ids=[str(case[0])[:20] for case in R69])
def test_r69_wrong_temperatures_are_named(values: Any, field: str) -> None:
    gamma = 2 if field == "temperatures[1]" else 1
    with pytest.raises(CalibrationValueError) as caught:
        checked_scales("temperatures", values, gamma)
    assert caught.value.field == field


def test_rounding_comes_before_the_bounds() -> None:
    assert checked_scales("temperatures", [20.000001, 0.0499999999], 2) == (20.0, 0.05)


def test_numpy_numbers_and_arrays_are_numbers() -> None:
    assert checked_scales("temperatures", np.array([1, 2], dtype=np.int64), 2) == (1.0, 2.0)
    assert checked_scales("temperatures", [np.float32(1.25)], 1) == (1.25,)


def test_intercepts_may_be_negative_but_are_finite() -> None:
    assert checked_numbers("intercepts", [-3.25, 0], 2) == (-3.25, 0.0)
    with pytest.raises(CalibrationValueError, match=r"intercepts\[0\]: got inf"):
        checked_numbers("intercepts", [float("inf")], 1)


def test_finite_number_keeps_the_value() -> None:
    assert finite_number("x", 7) == 7.0


@pytest.mark.parametrize("bad", [0, -1, 255, 7.0, True, "7", None])
def test_gamma_is_a_whole_number_in_range(bad: Any) -> None:
    with pytest.raises(CalibrationValueError, match="block size"):
        checked_gamma(bad)


def test_gamma_may_be_a_numpy_integer() -> None:
    assert checked_gamma(np.uint8(7)) == 7
