from __future__ import annotations

import numpy as np
import pytest

from calib.bin_sums import BinSums
from calib.reliability import ReliabilitySums, bin_index


def test_weights_of_one_equal_no_weights() -> None:
    rng = np.random.default_rng(1)
    p32 = rng.random(200).astype(np.float32)
    y = rng.random(200).astype(np.float32).astype(np.float64)
    plain = ReliabilitySums.from_predictions(p32, y).position(0)
    weighted = BinSums.weighted(bin_index(p32), p32.astype(float), y, np.ones(200), 15)
    for name in BinSums.__dataclass_fields__:
        assert getattr(weighted, name) == pytest.approx(getattr(plain, name), abs=1e-7), name


def test_whole_weights_equal_repeated_rows_in_first_order_sums() -> None:
    p, y = np.array([0.1, 0.12, 0.8]), np.array([0.0, 1.0, 1.0])
    times = np.array([3, 1, 2])
    weighted = BinSums.weighted(bin_index(p), p, y, times.astype(float), 15)
    repeated = ReliabilitySums.from_predictions(p.repeat(times), y.repeat(times)).position(0)
    for name in ("weight", "sum_p", "sum_y", "sum_squared_residual"):
        assert getattr(weighted, name) == pytest.approx(getattr(repeated, name), abs=1e-6), name
    assert weighted.rows == 3
    assert repeated.rows == 6


def test_gap_is_label_minus_prediction_and_zero_in_empty_bins() -> None:
    sums = ReliabilitySums.from_predictions([0.25, 0.25], [1, 0], n_bins=2).position(0)
    assert sums.gap.tolist() == [0.25, 0.0]
    assert not sums.soft
    assert ReliabilitySums.from_predictions([0.25], [0.5]).position(0).soft


def test_residual_variance_is_the_sample_variance_times_rows() -> None:
    p, y = np.full(4, 0.5), np.array([0.5, 0.7, 0.3, 0.1])
    sums = ReliabilitySums.from_predictions(p, y, n_bins=1).position(0)
    assert sums.residual_variance()[0] == pytest.approx(4 * np.var(y - p, ddof=1), abs=1e-6)


def test_residual_variance_of_a_single_row_is_its_square() -> None:
    sums = ReliabilitySums.from_predictions([0.5], [0.7], n_bins=1).position(0)
    assert sums.residual_variance()[0] == pytest.approx(0.04, abs=1e-7)
