from __future__ import annotations

import numpy as np
import pytest

from calib.errors import InvalidInputError, RecordError
from calib.squashed_logit import (
    check_scale_exponent,
    in_range,
    label_units,
    logit_units,
    scale_exponent,
    scaled_logits,
    squash_cells,
)


def test_cells_by_hand() -> None:
    z = np.array([0.0, 4.0, -4.0, 12.0, 1.0, 65536.0, -65536.0], dtype=np.float32)
    # u = 0, 2, -2, 3, 0.8, 3.99976, -3.99976; cell = floor((u + 4)·1024 / 8).
    assert squash_cells(z, 1024).tolist() == [512, 768, 256, 896, 614, 1023, 0]


def test_cells_never_fall_as_logits_rise() -> None:
    z = np.linspace(-70.0, 70.0, 100_001, dtype=np.float32)
    cells = squash_cells(z, 1024)
    assert (np.diff(cells) >= 0).all()
    assert (cells[z >= 0] >= 512).all()
    assert (cells[z < -0.01] < 512).all()


def test_fixed_point() -> None:
    assert logit_units(np.array([1.5, -2.0], dtype=np.float32)).tolist() == [98304.0, -131072.0]
    assert label_units(np.array([0.0, 0.5, 1.0])).tolist() == [0.0, 2.0**29, 2.0**30]


@pytest.mark.parametrize("label", [-0.1, 1.1, np.nan])
def test_labels_outside_are_refused(label: float) -> None:
    with pytest.raises(RecordError):
        label_units(np.array([0.5, label]))


@pytest.mark.parametrize(
    ("logits", "exponent"),
    [([2, -1, 0.5], 0), ([2e3, -1e3, 5e2], 9), ([2e5, -1e5, 5e4], 16), ([0.0], 0), ([1e-3], -11)],
)
def test_scale_follows_the_size_of_logits(logits: list[float], exponent: int) -> None:
    assert scale_exponent(np.array(logits)) == exponent


def test_scaling_is_exact_and_bounded() -> None:
    assert scaled_logits(np.array([3e5]), 16).tolist() == [np.float32(3e5) / 65536]
    assert scaled_logits(np.array([1e30, -1e30]), 0).tolist() == [65536.0, -65536.0]


@pytest.mark.parametrize(
    ("logits", "inside"),
    [
        ([], True),
        ([0.0, -3.0], True),
        ([65536.0, -65536.0], True),  # too large for the sum of squares, and yet inside
        ([65_600.0, 0.0], False),
        ([0.0, -65_600.0], False),
        ([np.nan, 0.0], False),
        ([np.inf, 0.0], False),
        ([3e38, 3e38], False),
    ],
)
def test_range_by_hand(logits: list[float], inside: bool) -> None:
    assert in_range(np.array(logits, dtype=np.float32)) is inside


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_must_be_finite(value: float) -> None:
    with pytest.raises(RecordError, match="finite"):
        scaled_logits(np.array([0.0, value]), 0)


@pytest.mark.parametrize("exponent", [True, 101, 0.5])
def test_exponents_are_small_whole_numbers(exponent: int) -> None:
    with pytest.raises(InvalidInputError):
        check_scale_exponent(exponent)
