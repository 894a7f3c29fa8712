"""Doubly robust accepted length: by hand, and unbiased over many logs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from calib.errors import ConfigurationError, RecordError
from calib.records import AcceptanceRecords, Flag
from calib.replay_doubly_robust import DoublyRobustOutcomes


def log(**columns: Any) -> AcceptanceRecords:
    rows = len(columns["verified"])
    return AcceptanceRecords.from_columns(3, {"confidence_logits": [[0.0] * 3] * rows, **columns})


def accepted(outcomes: DoublyRobustOutcomes, row: int, length: int) -> float:
    return float(outcomes.accepted(np.array([row]), np.array([length]))[0])


def test_what_was_verified_answers_and_the_model_fills_the_rest() -> None:
    """ℓ = 1, n = 1 and S = (.9, .5, .2): one observed token, then .5 and .2 of the model."""
    found = DoublyRobustOutcomes(log(verified=[1], accepted=[1]), [[0.9, 0.5, 0.2]])
    assert [accepted(found, 0, n) for n in range(4)] == pytest.approx([0.0, 1.0, 1.5, 1.7])
    modelled = found.modelled(np.zeros(4, dtype=np.intp), np.arange(4))
    assert modelled.tolist() == pytest.approx([0.0, 0.0, 0.5, 0.7])
    assert found.observed_share.tolist() == [1.0, 0.0, 0.0]


def test_known_zeros_are_no_observations() -> None:
    """n = 0 < ℓ = 1: positions 2 and 3 are known to be zero because of the outcome; S stands."""
    found = DoublyRobustOutcomes(log(verified=[1], accepted=[0]), [[0.9, 0.5, 0.2]])
    assert accepted(found, 0, 3) == pytest.approx(0.0 + 0.5 + 0.2)


def test_beyond_a_stop_token_nothing_is_emitted() -> None:
    records = log(verified=[1], accepted=[1], flags=[int(Flag.STOP_TRUNCATED)], scheduled=[2])
    found = DoublyRobustOutcomes(records, [[0.9, 0.5, 0.2]])
    assert accepted(found, 0, 3) == pytest.approx(1.0)


def test_a_coin_corrects_the_model_by_its_propensity() -> None:
    """Policy ℓ = 1, coin ε = .25 fell: positions 2 and 3 count four times; n = 2."""
    records = log(verified=[3, 1], accepted=[2, 1], explored=[True, False], propensity=[0.25, 0.25])
    survival = [[0.9, 0.5, 0.2]] * 2
    found = DoublyRobustOutcomes(records, survival, policy_lengths=[1, 1])
    assert accepted(found, 0, 3) == pytest.approx(1.0 + (0.5 + 4 * 0.5) + (0.2 - 4 * 0.2))
    assert accepted(found, 1, 3) == pytest.approx(1.0 + 0.5 + 0.2)
    # The other row's tokens rest on the coin as well, not on the model alone.
    assert found.modelled(np.array([1]), np.array([3])).tolist() == [0.0]
    assert found.effective_coins.tolist() == pytest.approx([0.0, 1.0, 1.0])
    clipped = DoublyRobustOutcomes(records, survival, policy_lengths=[1, 1], largest_weight=2.0)
    assert accepted(clipped, 0, 2) == pytest.approx(1.0 + 0.5 + 2 * 0.5)


def test_full_verification_by_load_stands_for_itself() -> None:
    records = log(verified=[3], accepted=[1], explored=[True], propensity=[1.0])
    found = DoublyRobustOutcomes(records, [[0.9, 0.9, 0.9]], policy_lengths=[0])
    assert accepted(found, 0, 3) == pytest.approx(1.0)


def simulated(seed: int, rows: int = 4000) -> tuple[AcceptanceRecords, Any, Any]:
    """A trimmed log with coins of ε = .1, its exact survival and the policy's lengths."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0.6, 1.2, (rows, 3)).astype(np.float32)
    chance = expit(logits.astype(np.float64))
    reached = np.cumprod(draw.random((rows, 3)) < chance, axis=1).sum(axis=1)
    policy = np.logical_and.accumulate(logits > 0.3, axis=1).sum(axis=1)
    coin = draw.random(rows) < 0.1
    verified = np.where(coin, 3, policy)
    records = AcceptanceRecords.from_columns(
        3,
        {
            "confidence_logits": logits,
            "verified": verified,
            "accepted": np.minimum(reached, verified),
            "explored": coin,
            "propensity": np.full(rows, 0.1, dtype=np.float32),
        },
    )
    return records, np.cumprod(chance, axis=1), policy


@pytest.mark.statistical
def test_unbiased_whatever_the_model_where_propensities_are_known() -> None:
    """Over 60 logs the mean error of full verification is within three standard errors of 0,
    with a model that is grossly wrong; without the coins it is off by the model's own error.
    """
    rows = np.arange(4000)
    full = np.full(4000, 3)
    robust, plain = [], []
    for seed in range(60):
        records, truth, policy = simulated(seed)
        wrong = truth**3  # far too low
        with_coins = DoublyRobustOutcomes(records, wrong, policy_lengths=policy)
        expected = truth.sum(axis=1).mean()
        robust.append(with_coins.accepted(rows, full).mean() - expected)
        alone = DoublyRobustOutcomes(records, wrong)
        plain.append(alone.accepted(rows, full).mean() - expected)
    error = np.std(robust, ddof=1) / len(robust) ** 0.5
    assert abs(np.mean(robust)) < 3 * error
    assert error < 0.01
    assert np.mean(plain) < -0.05  # nobody corrects what the model says of unverified positions


@pytest.mark.statistical
def test_unbiased_whatever_the_propensity_where_the_model_is_right() -> None:
    rows = np.arange(4000)
    full = np.full(4000, 3)
    errors: dict[str, list[float]] = {"unknown": [], "misstated": []}
    for seed in range(40):
        records, truth, policy = simulated(500 + seed)
        columns = records.columns() | {"propensity": np.full(4000, 0.4, dtype=np.float32)}
        misstated = AcceptanceRecords.from_columns(3, columns)
        expected = truth.sum(axis=1).mean()
        found = DoublyRobustOutcomes(records, truth).accepted(rows, full).mean()
        errors["unknown"].append(found - expected)
        wrong = DoublyRobustOutcomes(misstated, truth, policy_lengths=policy)
        errors["misstated"].append(wrong.accepted(rows, full).mean() - expected)
    for found_errors in errors.values():
        standard = np.std(found_errors, ddof=1) / len(found_errors) ** 0.5
        assert abs(np.mean(found_errors)) < 3 * standard


def test_wrong_input_is_named() -> None:
    records = log(verified=[2, 3], accepted=[1, 1])
    right = np.full((2, 3), 0.5)
    for wrong in (right[:1], right + 0.6, np.full((2, 3), np.nan)):
        with pytest.raises(RecordError, match="survival"):
            DoublyRobustOutcomes(records, wrong)
    for lengths in ([1], [1.0, 2.0], [0, 4], [1, 3]):  # the last: row 0 verified two
        with pytest.raises(RecordError, match="policy_lengths"):
            DoublyRobustOutcomes(records, right, policy_lengths=lengths)
    with pytest.raises(ConfigurationError, match="largest_weight"):
        DoublyRobustOutcomes(records, right, largest_weight=0.5)
