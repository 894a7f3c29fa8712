"""Lookup rules of the three tables, point by point."""

from __future__ import annotations

import bisect
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable, MeasuredCostTable
from calib.errors import ScheduleError

FLAT = FlatCostTable((4, 8, 32), (100.0, 90.0, 40.0), 64)
ADDITIVE = AdditiveCostTable(0.01, (1, 9), (0.001, 0.005), (10, 20, 40), (0.0, 0.01, 0.05))
MEASURED = MeasuredCostTable((10, 20, 40), (0.02, 0.03, 0.07))


@pytest.mark.parametrize(
    ("tokens", "sps"),
    [
        (0, 100.0),
        (1, 100.0),
        (4, 100.0),
        (7, 100.0),
        (8, 90.0),
        (31, 90.0),
        (32, 40.0),
        (999, 40.0),
    ],
)
def test_flat_takes_the_probe_below(tokens: int, sps: float) -> None:
    assert FLAT.steps_per_second(tokens, 1) == sps
    assert FLAT.step_seconds(tokens, 1) == 1.0 / sps
    assert FLAT.throughput(2.5, tokens, 1) == 2.5 * sps


@pytest.mark.parametrize(
    ("tokens", "requests", "seconds"),
    [
        (10, 1, 0.011),
        (1, 1, 0.011),  # below the first probe
        (15, 1, 0.016),
        (30, 5, 0.043),  # α halfway .003, θ halfway .03
        (40, 9, 0.065),
        (400, 90, 0.065),  # above the last probes
    ],
)
def test_additive_interpolates(tokens: int, requests: int, seconds: float) -> None:
    assert ADDITIVE.step_seconds(tokens, requests) == pytest.approx(seconds, rel=1e-12)
    assert ADDITIVE.steps_per_second(tokens, requests) == pytest.approx(1 / seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(1, 0.02), (10, 0.02), (15, 0.025), (20, 0.03), (30, 0.05), (40, 0.07), (50, 0.09)],
)
def test_measured_interpolates_step_time_and_goes_on(tokens: int, seconds: float) -> None:
    assert MEASURED.step_seconds(tokens, 3) == pytest.approx(seconds, rel=1e-12)
    assert MEASURED.throughput(4.0, tokens, 3) == pytest.approx(4.0 / seconds, rel=1e-12)


def test_measured_never_falls_above_its_last_point() -> None:
    noisy = MeasuredCostTable((10, 20), (0.03, 0.02))
    assert noisy.step_seconds([20, 200], 1).tolist() == [0.02, 0.02]
    assert MeasuredCostTable((5,), (0.03,)).step_seconds([1, 99], 1).tolist() == [0.03, 0.03]


@pytest.mark.parametrize("table", [FLAT, ADDITIVE, MEASURED], ids=lambda t: type(t).__name__)
def test_arrays_keep_their_shape(table: CostTable) -> None:
    tokens = np.arange(1, 13).reshape(3, 4)
    found = table.steps_per_second(tokens, 2)
    assert found.shape == (3, 4)
    assert found.dtype == np.float64
    one_by_one = [[float(table.steps_per_second(int(b), 2)) for b in row] for row in tokens]
    assert found.tolist() == one_by_one


def interpolate(xs: list[int], ys: list[float], x: float) -> float:
    """Clamped linear interpolation of SGLang's additive table, one value at a time."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    high = bisect.bisect_right(xs, x)
    return ys[high - 1] + (x - xs[high - 1]) / (xs[high] - xs[high - 1]) * (ys[high] - ys[high - 1])


PROBES = st.lists(st.integers(1, 300), min_size=1, max_size=8, unique=True).map(sorted)


@pytest.mark.parity
@pytest.mark.property
@given(
    bs=PROBES, m=PROBES, data=st.data(), requests=st.integers(1, 320), budget=st.integers(0, 320)
)
def test_additive_equals_the_engines_arithmetic(
    bs: list[int], m: list[int], data: Any, requests: int, budget: int
) -> None:
    seconds = st.floats(1e-5, 0.1)
    alpha = data.draw(st.lists(seconds, min_size=len(bs), max_size=len(bs)))
    theta = data.draw(st.lists(seconds, min_size=len(m), max_size=len(m)))
    table = AdditiveCostTable(0.002, tuple(bs), tuple(alpha), tuple(m), tuple(theta))
    expected = 0.002 + interpolate(bs, alpha, requests) + interpolate(m, theta, requests + budget)
    assert float(table.step_seconds(requests + budget, requests)) == pytest.approx(
        expected, rel=1e-14
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"probes": ()}, "sample_batch_tokens"),
        ({"probes": (4, 4, 32)}, "sample_batch_tokens"),
        ({"probes": (8, 4, 32)}, "sample_batch_tokens"),
        ({"probes": (0, 4, 32)}, "sample_batch_tokens"),
        ({"sps": (1.0, 2.0)}, "sample_steps_per_sec"),
        ({"sps": (1.0, 0.0, 1.0)}, "sample_steps_per_sec"),
        ({"sps": (1.0, math.nan, 1.0)}, "sample_steps_per_sec"),
        ({"sps": (1.0, math.inf, 1.0)}, "sample_steps_per_sec"),
        ({"max_batch_tokens": 31}, "max_batch_tokens"),
    ],
)
def test_flat_is_checked(changes: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "probes": FLAT.probes,
        "sps": FLAT.sps,
        "max_batch_tokens": FLAT.max_batch_tokens,
    }
    with pytest.raises(ScheduleError) as caught:
        FlatCostTable(**(good | changes))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bias_seconds": 0.0}, "bias_seconds"),
        ({"bias_seconds": math.nan}, "bias_seconds"),
        ({"alpha_seconds": (-0.02, 0.0)}, "bias_seconds"),
        ({"alpha_seconds": (math.inf, 0.0)}, "alpha_seconds"),
        ({"theta_seconds": (0.0, math.nan, 0.0)}, "theta_seconds"),
        ({"request_probes": (9, 1)}, "bs_probes"),
        ({"token_probes": (1, 2)}, "theta_seconds"),
    ],
)
def test_additive_is_checked(changes: dict[str, Any], field: str) -> None:
    good: dict[str, Any] = {
        "bias_seconds": ADDITIVE.bias_seconds,
        "request_probes": ADDITIVE.request_probes,
        "alpha_seconds": ADDITIVE.alpha_seconds,
        "token_probes": ADDITIVE.token_probes,
        "theta_seconds": ADDITIVE.theta_seconds,
    }
    with pytest.raises(ScheduleError) as caught:
        AdditiveCostTable(**(good | changes))
    assert caught.value.field == field


def test_a_regression_may_leave_negative_parts() -> None:
    table = AdditiveCostTable(0.01, (1, 2), (-0.001, 0.002), (1, 2), (0.0, 0.01))
    assert table.step_seconds(1, 1) == pytest.approx(0.009)


def test_measured_is_checked() -> None:
    for points, seconds in [((1, 2), (0.1, 0.0)), ((1, 2), (0.1,)), ((2, 1), (0.1, 0.1))]:
        with pytest.raises(ScheduleError):
            MeasuredCostTable(points, seconds)
