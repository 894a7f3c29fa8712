"""Residuals by hand, and case M7: what a mean of 0 needs."""

from __future__ import annotations

import numpy as np
import pytest

from calib.errors import RecordError
from monitoring.detectors.observations import Observations
from monitoring.detectors.residuals import (
    conditional_residual,
    position_residuals,
    slope_residual,
    survival_residual,
)
from tests.monitoring.traffic import leaky_traffic

# Row 1: all of γ = 3 verified, rejected at 2. Row 2: trimmed after 1, accepted. Row 3: nothing.
ROWS = Observations(
    np.array([[0.8, 0.6, 0.5], [0.9, 0.5, 0.5], [0.4, 0.4, 0.4]], dtype=np.float32),
    np.array([3, 1, 0]),
    np.array([1, 1, 0]),
    np.array([[0.8, 0.5, 0.3], [0.9, 0.4, 0.2], [0.4, 0.2, 0.1]], dtype=np.float32),
)


def test_by_hand() -> None:
    # R: (1 − 1.6)/3, (1 − .9)/3 and 0; y − c: .2 − .6, .1, nothing.
    assert survival_residual(ROWS) == pytest.approx([-0.2, 0.1 / 3, 0.0], abs=1e-7)
    assert conditional_residual(ROWS) == pytest.approx([-0.4 / 3, 0.1 / 3, 0.0], abs=1e-7)
    # 2c − 1: .6 and .2; .8.
    assert slope_residual(ROWS) == pytest.approx([(0.12 - 0.12) / 3, 0.08 / 3, 0.0], abs=1e-7)


def test_unobserved_is_nan() -> None:
    by_position = position_residuals(ROWS)
    assert by_position[0] == pytest.approx([0.2, -0.6, np.nan], nan_ok=True, abs=1e-7)
    assert np.isnan(by_position[1, 1:]).all()
    assert np.isnan(by_position[2]).all()


def test_survival_is_required() -> None:
    with pytest.raises(RecordError, match="survival"):
        survival_residual(Observations(ROWS.conditional, ROWS.verified, ROWS.accepted))


def test_bounded_by_one() -> None:
    extreme = Observations(
        np.array([[0.0, 0.0], [1.0, 1.0]], np.float32),
        np.array([2, 2]),
        np.array([2, 0]),
        np.array([[0.0, 0.0], [1.0, 1.0]], np.float32),
    )
    assert survival_residual(extreme).tolist() == [1.0, -1.0]
    assert conditional_residual(extreme).tolist() == [1.0, -0.5]


def z_score(residual: np.ndarray) -> float:
    return float(residual.mean() / (residual.std() / np.sqrt(len(residual))))


def test_m7_mean_zero_under_leak_and_trimming() -> None:
    """Perfect conditional confidence, next logit reveals the token, threshold trimming."""
    traffic = leaky_traffic(np.random.default_rng(7), 60_000, threshold=0.2)
    rows = traffic.served()
    assert (rows.verified == 0).mean() + (rows.verified < 7).mean() > 0.05  # it does trim
    assert abs(z_score(conditional_residual(rows))) < 4.0
    assert abs(z_score(slope_residual(rows))) < 4.0
    assert abs(z_score(survival_residual(rows))) < 4.0
    for column in position_residuals(rows).T:
        known = column[~np.isnan(column)]
        if len(known) > 100:
            assert abs(z_score(known)) < 4.0
    # The statistic that must not exist: over ℓ, and with the product of conditionals.
    used = rows.verified > 0
    position = np.arange(rows.gamma) < rows.verified[:, None]
    product = np.where(position, np.cumprod(rows.conditional, axis=1), 0.0).sum(axis=1)
    wrong = (rows.accepted - product)[used] / rows.verified[used]
    assert abs(z_score(wrong)) > 8.0
    assert abs(z_score((rows.accepted - product) / rows.gamma)) > 10.0  # the product alone
    exact = np.where(position, traffic.survival, 0.0).sum(axis=1)
    divided = (rows.accepted - exact)[used] / rows.verified[used]
    assert abs(z_score(divided)) > 10.0  # even with exact survival, over ℓ
