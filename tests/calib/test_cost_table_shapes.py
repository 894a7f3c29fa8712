"""Made-up step curves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.cost_table_shapes import CurveShape, analytic_cost_table
from calib.errors import ScheduleError


def seconds(shape: str, tokens: list[int], **options: Any) -> list[float]:
    table = analytic_cost_table(shape, max_batch_tokens=1024, **options)
    return [round(value, 9) for value in table.step_seconds(tokens, 1).tolist()]


def test_smooth() -> None:
    found = seconds("smooth", [1, 256, 512])
    assert found == [0.02, round(0.02 * 2**0.25, 9), round(0.02 * 17**0.25, 9)]


def test_kneed() -> None:
    assert seconds("kneed", [1, 256, 512, 1024]) == [0.02, 0.02, 0.04, 0.08]


def test_staircase() -> None:
    options = {"knee": 100, "tile": 50, "base_seconds": 0.01}
    found = seconds("staircase", [1, 100, 101, 150, 151], **options)
    assert found == [0.01, 0.01, 0.015, 0.015, 0.02]


@pytest.mark.parametrize("shape", list(CurveShape))
def test_time_never_falls(shape: CurveShape) -> None:
    table = analytic_cost_table(shape, max_batch_tokens=700)
    assert (np.diff(table.step_seconds(np.arange(1, 900), 1)) >= 0.0).all()


def test_a_sharp_smooth_curve_is_kneed() -> None:
    sharp = analytic_cost_table("smooth", max_batch_tokens=900, sharpness=200.0)
    kneed = analytic_cost_table("kneed", max_batch_tokens=900)
    assert np.allclose(sharp.seconds, kneed.seconds, rtol=0.004)


@pytest.mark.parametrize(
    "options",
    [
        {"shape": "cliff"},
        {"max_batch_tokens": 0},
        {"knee": 0},
        {"tile": 0},
        {"sharpness": 0.5},
        {"base_seconds": 0.0},
    ],
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ScheduleError):
        analytic_cost_table(**({"shape": "smooth", "max_batch_tokens": 8} | options))
