"""The interval's coverage is the point: at zero, near it, far from it, and with clusters.

Limits leave three standard errors of a share of 400 seeds. At zero the interval is one-sided, so
it covers 97.5 %.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.bin_sums import BinSums
from calib.clusters import BinMoments
from calib.debiased_calibration_error import (
    DebiasedError,
    debiased_calibration_error,
    debiased_squared_error,
)
from calib.expected_calibration_error import expected_calibration_error
from calib.reliability import ReliabilitySums, bin_index
from tests.calib.predictions import Predictions, draw, true_l2_error

SEEDS = 400


def _moments(sample: Predictions, clustered: bool = False) -> BinMoments:
    sums = ReliabilitySums.from_predictions(sample.p, sample.y).position(0)
    if not clustered:
        return BinMoments.of_independent_rows(sums)
    residual = sample.y - sample.p
    return BinMoments.of_clusters(sums, bin_index(sample.p), residual, None, sample.clusters)


def _error(sample: Predictions, clustered: bool = False) -> DebiasedError:
    error = debiased_calibration_error(_moments(sample, clustered))
    assert error is not None
    return error


def test_debiased_square_by_hand() -> None:
    """One bin, residuals .5, .5, -.5: products of different rows are .25, -.25, -.25."""
    sums = ReliabilitySums.from_predictions([0.5] * 3, [1, 1, 0]).position(0)
    moments = BinMoments.of_independent_rows(sums)
    assert debiased_squared_error(moments) == pytest.approx(-0.25 / 3)
    error = debiased_calibration_error(moments)
    assert error is not None
    assert (error.root, error.low) == (0.0, 0.0)
    assert 0.3 < error.high <= 1.0


def test_debiased_square_leaves_out_products_within_a_cluster() -> None:
    """Clusters {1, 1} and {0} at p = .5: only (.5 + .5) · -.5 counts, over 2 · 1 pairs."""
    p, y = np.full(3, 0.5), np.array([1.0, 1.0, 0.0])
    sums = ReliabilitySums.from_predictions(p, y).position(0)
    moments = BinMoments.of_clusters(sums, bin_index(p), y - p, None, np.array([0, 0, 1]))
    assert debiased_squared_error(moments) == pytest.approx(-0.25)


def test_nothing_without_two_clusters_in_a_bin() -> None:
    sums = ReliabilitySums.from_predictions([0.1, 0.9], [0, 1]).position(0)
    assert debiased_calibration_error(BinMoments.of_independent_rows(sums)) is None
    p, y = np.full(3, 0.5), np.array([1.0, 1.0, 0.0])
    one = ReliabilitySums.from_predictions(p, y).position(0)
    codes = np.zeros(3, dtype=np.intp)
    moments = BinMoments.of_clusters(one, bin_index(p), y - p, None, codes)
    assert debiased_calibration_error(moments) is None


def test_certain_gap_gives_a_narrow_interval_around_it() -> None:
    sums = ReliabilitySums.from_predictions(np.full(10_000, 1.0), np.full(10_000, 0.75))
    error = debiased_calibration_error(BinMoments.of_independent_rows(sums.position(0)))
    assert error is not None
    assert error.root == pytest.approx(0.25, abs=1e-6)
    assert error.low == pytest.approx(0.25, abs=1e-3)
    assert error.high == pytest.approx(0.25, abs=1e-3)


def test_interval_holds_the_estimate_and_shrinks_with_confidence() -> None:
    for seed in range(50):
        sample = draw(np.random.default_rng(seed), 500, temperature=1.0 + seed / 50)
        moments = _moments(sample)
        wide, narrow = (debiased_calibration_error(moments, level) for level in (0.95, 0.5))
        assert wide is not None
        assert narrow is not None
        assert 0.0 <= wide.low <= narrow.low <= narrow.high <= wide.high <= 1.0
        assert wide.low <= wide.root <= wide.high


@pytest.mark.statistical
@pytest.mark.parametrize("soft", [False, True])
def test_debiased_is_unbiased_on_a_perfect_model_and_plug_in_is_not(soft: bool) -> None:
    rng = np.random.default_rng(11)
    squares, plug_in = [], []
    for _ in range(SEEDS):
        sample = draw(rng, 1000, soft=soft)
        squares.append(_error(sample).squared)
        sums = ReliabilitySums.from_predictions(sample.p, sample.y).position(0)
        plug_in.append(expected_calibration_error(sums))
    assert abs(np.mean(squares)) < 3 * np.std(squares) / np.sqrt(SEEDS)
    assert np.mean(plug_in) > (0.014 if soft else 0.03)


@pytest.mark.statistical
@pytest.mark.parametrize(("temperature", "shift"), [(1.25, 0.0), (3.0, 0.0), (1.0, -1.5)])
def test_debiased_square_is_unbiased_on_a_wrong_model(temperature: float, shift: float) -> None:
    rng = np.random.default_rng(12)
    truth = true_l2_error(temperature, shift)
    squares = [
        _error(draw(rng, 1000, temperature=temperature, shift=shift)).squared for _ in range(SEEDS)
    ]
    assert abs(np.mean(squares) - truth**2) < 3 * np.std(squares) / np.sqrt(SEEDS)


def _coverage(rows: int, seed: int, clustered: bool = False, **options: Any) -> float:
    """Share of seeds whose interval holds the true error."""
    truth = true_l2_error(
        options.get("temperature", 1.0), options.get("shift", 0.0), options.get("centre", 1.0)
    )
    rng = np.random.default_rng(seed)
    errors = [_error(draw(rng, rows, **options), clustered) for _ in range(SEEDS)]
    return float(np.mean([e.low <= truth <= e.high for e in errors]))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (200, {}),
        (1000, {}),
        (5000, {}),
        (1000, {"centre": 3.0}),  # most rows in the last bin
        (1000, {"soft": True}),
    ],
)
def test_coverage_of_a_perfect_model(rows: int, options: dict[str, Any]) -> None:
    assert 0.945 <= _coverage(rows, 21, **options) <= 1.0


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (1000, {"temperature": 1.1}),  # near zero: below the noise of the plug-in square
        (1000, {"temperature": 1.25}),
        (5000, {"temperature": 1.25}),
        (1000, {"temperature": 3.0}),
        (1000, {"shift": -0.3}),
        (200, {"shift": -1.5}),
        (1000, {"temperature": 1.6, "centre": 3.0}),
        (1000, {"temperature": 1.25, "soft": True}),
    ],
)
def test_coverage_of_a_wrong_model(rows: int, options: dict[str, Any]) -> None:
    assert 0.92 <= _coverage(rows, 22, **options) <= 0.995


@pytest.mark.statistical
@pytest.mark.parametrize("options", [{}, {"temperature": 1.25}, {"temperature": 3.0}])
def test_coverage_with_clustered_labels(options: dict[str, Any]) -> None:
    shared = {"cluster_size": 20, "correlation": 0.2}
    assert 0.92 <= _coverage(3000, 23, clustered=True, **shared, **options) <= 0.995


@pytest.mark.slow
@pytest.mark.statistical
def test_ignoring_clusters_loses_coverage() -> None:
    """Why ``clusters`` exists: the same rows taken as independent."""
    options = {"cluster_size": 20, "correlation": 0.5, "shift": -0.3}
    assert _coverage(3000, 24, clustered=False, **options) < 0.75
    assert _coverage(3000, 24, clustered=True, **options) > 0.93


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [1.0, 1.6])
def test_coverage_with_weights(temperature: float) -> None:
    """Weights that know nothing of the labels leave the truth and cost rows."""
    truth, rng, covered = true_l2_error(temperature, 0.0), np.random.default_rng(25), []
    for _ in range(SEEDS):
        sample = draw(rng, 1000, temperature=temperature)
        sums = BinSums.weighted(
            bin_index(sample.p), sample.p, sample.y, rng.exponential(size=1000), 15
        )
        error = debiased_calibration_error(BinMoments.of_independent_rows(sums))
        assert error is not None
        covered.append(error.low <= truth <= error.high)
    assert 0.92 <= np.mean(covered) <= 1.0
