from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.sts_screen import SurvivalScreen
from tests.calib.blocks import simulate

GRID = 10.0 ** np.linspace(-1.0, 1.0, 41)


def exact_ece(survival: Any, z: Any, y: Any, temperature: float, n_bins: int) -> float:
    with np.errstate(over="ignore"):
        p = survival / (1.0 + np.exp(-np.asarray(z, dtype=np.float64) / temperature))
    bins = np.minimum((p * n_bins).astype(int), n_bins - 1)
    return float(np.abs(np.bincount(bins, p - y, n_bins)).sum() / len(z))


def check_bounds(survival: Any, z: Any, y: Any, n_bins: int = 15) -> None:
    temperatures = GRID[::5]
    screen = SurvivalScreen.build(survival, z, y, n_bins, minimum_rows=1)
    assert screen is not None
    exact = [exact_ece(survival, z, y, t, n_bins) for t in temperatures]
    for level in range(len(screen.levels)):
        bound, estimate = screen.bounds(temperatures, level)
        assert (bound <= exact).all()
        assert estimate.shape == temperatures.shape


def test_bounds_hold_and_prune_on_plain_rows() -> None:
    blocks = simulate(30_000, seed=1)
    z = blocks.logits[:, 1].astype(np.float64)
    survival = 1 / (1 + np.exp(-blocks.logits[:, 0] / 1.6))
    y = (blocks.accepted > 1).astype(np.uint8)
    check_bounds(survival, z, y)
    screen = SurvivalScreen.build(survival, z, y, 15)
    assert screen is not None
    bound, estimate = screen.bounds(GRID, -1)
    exact = np.array([exact_ece(survival, z, y, t, 15) for t in GRID])
    assert np.count_nonzero(bound <= exact.min()) <= 12
    assert np.abs(estimate - exact).max() < 0.004


def test_three_levels_when_there_are_many_rows() -> None:
    blocks = simulate(200_000, seed=2, gamma=2)
    survival = (1 / (1 + np.exp(-blocks.logits[:, 0] / 1.6))).astype(np.float32)
    y = (blocks.accepted > 1).astype(np.uint8)
    screen = SurvivalScreen.build(survival, blocks.logits[:, 1].copy(), y, 15)
    assert screen is not None
    assert len(screen.levels) == 3
    best = exact_ece(survival, blocks.logits[:, 1], y, 1.5, 15)
    left = [np.count_nonzero(screen.bounds(GRID, level)[0] <= best) for level in range(3)]
    assert left[0] >= left[1] >= left[2] >= 1
    assert left[2] <= 3


def test_no_screen_for_few_rows_or_logits_it_cannot_place() -> None:
    y = np.zeros(100, dtype=np.uint8)
    one = np.ones(100)
    assert SurvivalScreen.build(one, np.zeros(100), y, 15) is None
    assert SurvivalScreen.build(one, np.full(100, 1e31), y, 15, minimum_rows=1) is None
    assert SurvivalScreen.build(one[:0], one[:0], y[:0], 15, minimum_rows=0) is None


@pytest.mark.property
@settings(max_examples=30)
@given(
    st.integers(1, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-3, 0.3, 3.0, 60.0, 1e5]),
    st.sampled_from([1, 2, 10, 15, 100]),
    st.sampled_from(["hard", "soft", "one"]),
    st.sampled_from(["spread", "ones", "narrow", "zeros"]),
)
def test_bounds_never_exceed_the_exact_error(
    rows: int, seed: int, scale: float, n_bins: int, labels: str, survivals: str
) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=scale, size=rows)
    z[rng.random(rows) < 0.2] = 0.0
    z = np.where(rng.random(rows) < 0.3, np.round(z), z).astype(np.float32)
    y: Any = rng.random(rows)
    if labels == "hard":
        y = (y < 0.5).astype(np.uint8)
    elif labels == "one":
        y = np.ones(rows, dtype=np.uint8)
    survival = {
        "spread": rng.random(rows),
        "ones": np.ones(rows),
        "narrow": 0.3 + 1e-7 * rng.random(rows),
        "zeros": np.where(rng.random(rows) < 0.5, 0.0, 1.0),
    }[survivals]
    check_bounds(survival, z, y, n_bins)
