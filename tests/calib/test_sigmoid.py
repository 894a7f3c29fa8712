from __future__ import annotations

import math

import numpy as np
import pytest

from calib.sigmoid import CHUNK, sigmoid_fp32, sigmoid_into


def test_is_the_rounded_float64_value() -> None:
    x = np.random.default_rng(0).normal(scale=20.0, size=(3, CHUNK + 7)).astype(np.float32)
    exact = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    result = sigmoid_fp32(x)
    assert result.dtype == np.float32
    assert np.array_equal(result, exact.astype(np.float32))


@pytest.mark.parametrize(
    ("x", "expected"), [(math.inf, 1.0), (-math.inf, 0.0), (0.0, 0.5), (-3e38, 0.0)]
)
def test_extremes(x: float, expected: float) -> None:
    assert sigmoid_fp32(np.array([x], dtype=np.float32))[0] == expected


def test_does_not_depend_on_layout_or_place() -> None:
    x = np.random.default_rng(1).normal(size=(1001, 5)).astype(np.float32)
    whole = sigmoid_fp32(x)
    assert np.array_equal(whole[::3, 2], sigmoid_fp32(x[::3, 2]))
    assert np.array_equal(whole, sigmoid_fp32(np.asfortranarray(x)))


def test_into_may_write_over_its_argument() -> None:
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    expected = sigmoid_fp32(x)
    sigmoid_into(x, np.empty(33), x)
    assert np.array_equal(x, expected)


def test_empty_stays_empty() -> None:
    assert sigmoid_fp32(np.zeros((0, 7), dtype=np.float32)).shape == (0, 7)
