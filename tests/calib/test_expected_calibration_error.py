from __future__ import annotations

import warnings

import numpy as np
import pytest

from calib.clusters import BinMoments
from calib.expected_calibration_error import (
    expected_calibration_error,
    null_level,
    worst_bin_gap,
)
from calib.reliability import ReliabilitySums, bin_index
from tests.calib.predictions import draw


def _ece(p: object, y: object, **options: object) -> float:
    sums = ReliabilitySums.from_predictions(p, y, **options)  # type: ignore[arg-type]
    error = expected_calibration_error(sums.position(0))
    assert error is not None
    return error


def test_r01_last_bin_holds_probability_one() -> None:
    assert _ece([0.92, 1.0, 1.0], [1, 0, 1], n_bins=10) == pytest.approx(0.306667, abs=1e-6)


def test_r04_equal_scores_share_one_equal_mass_bin() -> None:
    y = [1, 0, 0, 1, 0, 0]
    assert _ece([0.8] * 6, y, binning="equal_mass") == pytest.approx(0.466667, abs=1e-6)
    groups = ReliabilitySums.from_predictions([0.8] * 6, y, binning="equal_mass").position(0)
    assert np.count_nonzero(groups.count) == 1


def test_r06_empty_bins_add_nothing() -> None:
    assert _ece([0.2, 0.5, 0.9], [0, 1, 1]) == pytest.approx(0.266667, abs=1e-6)


def test_r08_soft_labels_that_average_out() -> None:
    assert _ece([0.6, 0.6], [0.5, 0.7]) == pytest.approx(0.0, abs=1e-7)


def test_r14_small_bin_that_is_completely_wrong() -> None:
    p = np.repeat([0.9, 0.1], [980, 20])
    y = np.concatenate([np.ones(882), np.zeros(98), np.ones(20)])
    sums = ReliabilitySums.from_predictions(p, y).position(0)
    assert expected_calibration_error(sums) == pytest.approx(0.018, abs=1e-6)
    assert worst_bin_gap(sums) == pytest.approx(0.9, abs=1e-6)


def test_nothing_without_rows() -> None:
    empty = ReliabilitySums.zeros(1).position(0)
    assert expected_calibration_error(empty) is None
    assert worst_bin_gap(empty) is None
    assert null_level(empty) is None


def test_null_level_by_hand() -> None:
    sums = ReliabilitySums.from_predictions([0.5] * 4 + [0.9], [1, 0, 1, 1, 1]).position(0)
    expected = np.sqrt(2 / np.pi) * (np.sqrt(4 * 0.25) + np.sqrt(0.09)) / 5
    assert null_level(sums) == pytest.approx(expected, abs=1e-6)
    assert null_level(sums, 4.0) == pytest.approx(2 * expected, abs=1e-6)


@pytest.mark.parity
@pytest.mark.slow  # importing netcal alone takes ten seconds
def test_agrees_with_netcal_on_hard_labels() -> None:
    with warnings.catch_warnings():  # its imports warn
        warnings.simplefilter("ignore")
        metrics = pytest.importorskip("netcal.metrics")
    rng = np.random.default_rng(2)
    p = rng.random(5000)
    inner = np.linspace(0, 1, 16)[1:-1]
    p = p[np.abs(p[:, None] - inner).min(axis=1) > 1e-6]
    y = (rng.random(len(p)) < p**1.3).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = metrics.ECE(15).measure(p, y)
    assert _ece(p, y) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parity
def test_bins_agree_with_sklearn_calibration_curve() -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(3)
    p = rng.random(3000)
    y = (rng.random(3000) < p).astype(int)
    share, mean = calibration.calibration_curve(y, p, n_bins=15)
    sums = ReliabilitySums.from_predictions(p, y).position(0)
    assert sums.sum_y / sums.weight == pytest.approx(share, abs=1e-6)
    assert sums.sum_p / sums.weight == pytest.approx(mean, abs=1e-6)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (300, {}),
        (1000, {}),
        (10_000, {}),
        (1000, {"centre": 3.0}),
        (1000, {"soft": True}),
        (2000, {"cluster_size": 20, "correlation": 0.3}),
    ],
)
def test_null_level_is_what_a_perfect_model_shows(rows: int, options: dict[str, float]) -> None:
    rng = np.random.default_rng(4)
    errors, levels = [], []
    for _ in range(200):
        sample = draw(rng, rows, **options)  # type: ignore[arg-type]
        sums = ReliabilitySums.from_predictions(sample.p, sample.y).position(0)
        moments = BinMoments.of_independent_rows(sums)
        if "cluster_size" in options:
            residual = sample.y - sample.p
            moments = BinMoments.of_clusters(
                sums, bin_index(sample.p), residual, None, sample.clusters
            )
        errors.append(expected_calibration_error(sums))
        levels.append(null_level(sums, moments.design_effect))
    assert np.mean(levels) == pytest.approx(np.mean(errors), rel=0.1)


@pytest.mark.statistical
def test_null_level_of_soft_labels_is_far_below_that_of_coins() -> None:
    """c* spreads less than a coin: Σp(1 - p) would promise twice the noise there is."""
    sample = draw(np.random.default_rng(6), 5000, soft=True)
    sums = ReliabilitySums.from_predictions(sample.p, sample.y).position(0)
    coins = ReliabilitySums.from_predictions(sample.p, sample.y > 0.5).position(0)
    soft, hard = null_level(sums), null_level(coins)
    assert soft is not None
    assert hard is not None
    assert soft < 0.5 * hard
