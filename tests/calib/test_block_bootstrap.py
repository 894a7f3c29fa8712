from __future__ import annotations

import numpy as np
import pytest

from calib.block_bootstrap import block_totals, bootstrap_interval
from calib.errors import ConfigurationError


def test_blocks_keep_neighbours_together() -> None:
    """+1, −1, +1, −1, …: any two neighbours cancel, on the ring as well."""
    values = np.resize([1.0, -1.0], (10, 1))
    assert np.array_equal(block_totals(values, 2, replicates=50), np.zeros((50, 1)))
    assert np.abs(block_totals(values, 1, replicates=50)).max() > 0.0


def test_one_block_is_the_whole_sequence() -> None:
    values = np.arange(6.0).reshape(3, 2)
    assert np.array_equal(block_totals(values, 3, replicates=4), np.tile([6.0, 9.0], (4, 1)))


def test_columns_are_drawn_together() -> None:
    values = np.random.default_rng(0).normal(size=(40, 1))
    totals = block_totals(np.hstack([values, 3.0 * values]), 4, replicates=30)
    assert totals[:, 1] == pytest.approx(3.0 * totals[:, 0])


def test_single_steps_are_the_ordinary_bootstrap() -> None:
    """Mean S·mean and variance S·variance, within five standard errors of 20,000 replicates."""
    values = np.random.default_rng(1).exponential(size=(50, 1))
    totals = block_totals(values, 1, replicates=20_000)[:, 0]
    variance = 50 * values.var()
    assert totals.mean() == pytest.approx(values.sum(), abs=5 * (variance / 20_000) ** 0.5)
    assert totals.var() == pytest.approx(variance, rel=0.06)


@pytest.mark.statistical
def test_blocks_see_the_luck_that_neighbours_share() -> None:
    """Each value stands 20 times: the variance of the mean is that of 50 draws, not of 1,000.

    Blocks of 40 cut runs of 20: Σ(1 − h/20)(1 − h/40) is 5/6 of Σ(1 − h/20), lags h < 20.
    """
    variances = []
    for seed in range(60):
        values = np.repeat(np.random.default_rng(seed).normal(size=50), 20)[:, None]
        totals = block_totals(values, 40, replicates=200, seed=seed)[:, 0]
        variances.append((totals / 1000.0).var())
    assert np.mean(variances) == pytest.approx(5 / 6 * 49 / 50 / 50, rel=0.1)


def test_the_seed_decides() -> None:
    values = np.random.default_rng(0).normal(size=(30, 1))
    assert np.array_equal(block_totals(values, 3, seed=7), block_totals(values, 3, seed=7))
    assert not np.array_equal(block_totals(values, 3, seed=7), block_totals(values, 3, seed=8))


def test_interval_by_hand() -> None:
    """Spread 2, √(5/4) for five blocks, t = 2.7764 at four degrees of freedom."""
    low, high = bootstrap_interval(np.array([8.0, 12.0]), 7.0, blocks=5)
    assert high - 7.0 == pytest.approx(2.0 * 1.118034 * 2.776445)
    assert 7.0 - low == pytest.approx(high - 7.0)


def test_wrong_options_are_named() -> None:
    values = np.zeros((4, 1))
    for block in (0, 5):
        with pytest.raises(ConfigurationError, match="block_length"):
            block_totals(values, block)
    with pytest.raises(ConfigurationError, match="replicates"):
        block_totals(values, 1, replicates=0)
    with pytest.raises(ConfigurationError, match="confidence"):
        bootstrap_interval(values[:, 0], 0.0, 4, 1.0)
    with pytest.raises(ConfigurationError, match="blocks"):
        bootstrap_interval(values[:, 0], 0.0, 1)
