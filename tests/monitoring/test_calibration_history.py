"""Errors from additive sums, and a history that stays short."""

from __future__ import annotations

import numpy as np

from monitoring.calibration_history import MOST_POINTS, ErrorSums, HistoryPoint, thinned


def test_sums_of_parts_are_the_sums_of_the_whole() -> None:
    rng = np.random.default_rng(1)
    survival = np.cumprod(rng.uniform(0.4, 1.0, (600, 3)), axis=1).astype(np.float32)
    verified = np.full(600, 3, dtype=np.uint8)
    accepted = rng.integers(0, 4, 600).astype(np.uint8)
    whole = ErrorSums.of(survival, verified, accepted)
    parts = ErrorSums.of(survival[:250], verified[:250], accepted[:250])
    parts = parts + ErrorSums.of(survival[250:], verified[250:], accepted[250:])
    np.testing.assert_allclose(parts.sums, whole.sums, rtol=1e-12)
    assert parts.rows == 600


def test_a_known_gap_lies_within_the_interval_and_a_calibrated_head_near_zero() -> None:
    rng = np.random.default_rng(2)
    said = rng.uniform(0.3, 0.9, (20_000, 1)).astype(np.float32)
    verified = np.ones(20_000, dtype=np.uint8)
    for gap in (0.0, 0.08):
        accepted = (rng.random(20_000) < said[:, 0] - gap).astype(np.uint8)
        found = ErrorSums.of(said, verified, accepted).error()
        assert found is not None
        value, low, high = found
        assert low <= gap + 1e-9
        assert high >= gap
        assert abs(value - gap) < 0.015


def test_no_labels_no_error() -> None:
    nothing = np.zeros(3, dtype=np.uint8)
    assert ErrorSums.of(np.full((3, 2), 0.5, np.float32), nothing, nothing).error() is None


def test_the_newest_points_stay_whole() -> None:
    points: tuple[HistoryPoint, ...] = ()
    for number in range(1000):
        points = thinned((*points, HistoryPoint(float(number), number, 0.0, None, None, None)))
    assert len(points) <= MOST_POINTS
    assert [point.rows for point in points[-50:]] == list(range(950, 1000))
