"""Factors and shifts have the smallest Brier score, and are taken only where that is no luck."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from calib.conditional_likelihood import ConditionalLikelihood
from calib.survival_rescaling import SurvivalRescaling, fit_rescaling
from tests.support.leaky_generator import simulate_leaky, survival_ece

GAMMA = 4


def blocks(rows: int, seed: int, stretch: float = 1.0, shift: float = 0.0) -> tuple:
    """Odds whose truth is ``stretch`` times as steep and ``shift`` higher, and accepted lengths."""
    draw = np.random.default_rng(seed)
    odds = draw.normal(0.8, 1.2, (rows, GAMMA))
    chance = expit(stretch * odds + shift)
    accepted = np.cumprod(draw.random((rows, GAMMA)) < chance, axis=1).sum(axis=1)
    return odds, accepted


def test_numbers_are_those_of_a_general_minimiser() -> None:
    odds, accepted = blocks(3000, seed=1, stretch=1.6, shift=-0.5)
    found = fit_rescaling(odds, accepted, full(3000), np.arange(3000), ridge=7.0)
    assert found.taken
    before = np.ones(3000)
    for position in range(GAMMA):
        labels = (accepted > position).astype(float)

        def score(theta: np.ndarray) -> float:
            survival = before * expit(theta[0] * odds[:, position] + theta[1])  # noqa: B023
            pull = (theta[0] - 1.0) ** 2 + theta[1] ** 2
            return float(np.square(survival - labels).sum() + 3.5 * pull)  # noqa: B023

        best = minimize(score, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7}).x
        assert found.factors[position] == pytest.approx(best[0], abs=2e-4)
        assert found.shifts[position] == pytest.approx(best[1], abs=2e-4)
        before = before * expit(best[0] * odds[:, position] + best[1])


def test_gain_is_what_rows_outside_the_fit_save() -> None:
    odds, accepted = blocks(4000, seed=2, stretch=1.5)
    clusters = np.arange(4000) // 4
    found = fit_rescaling(odds, accepted, full(4000), clusters)
    labels = accepted[:, None] > np.arange(GAMMA)
    saved = np.zeros(4000)
    for half in (0, 1):
        out = clusters % 2 == half
        fit = fit_rescaling(odds[~out], accepted[~out], full(2000), clusters[~out] // 2)
        moved = odds * np.array(fit.factors) + np.array(fit.shifts)
        for sign, at in ((1.0, odds), (-1.0, moved)):
            error = np.cumprod(expit(at), axis=1) - labels
            saved[out] += sign * np.square(error).sum(axis=1)[out]
    sums = saved.reshape(1000, 4).sum(axis=1)
    expected = sums.std(ddof=1) / np.sqrt(1000) / 4
    assert found.brier_gain == pytest.approx((saved.mean(), expected), rel=1e-6)


def test_a_tail_that_grows_too_sure_is_not_taken() -> None:
    # Near one half odds are too flat; steeper ones would call certain what fails once in 55 times.
    draw = np.random.default_rng(5)
    odds = draw.choice([-4.0, -0.7, 0.7, 4.0], (6000, 1), p=[0.4, 0.1, 0.1, 0.4])
    chance = expit(np.where(np.abs(odds) < 1.0, 3.5, 1.0) * odds)
    accepted = (draw.random((6000, 1)) < chance).sum(axis=1)
    found = fit_rescaling(odds, accepted, full(6000), np.arange(6000))
    assert found.brier_gain[0] > found.brier_gain[1]
    assert found.log_loss_gain[0] < -found.log_loss_gain[1]
    assert not found.taken
    assert found.factors == (1.0,)


def full(rows: int) -> np.ndarray:
    return np.full(rows, GAMMA)


def test_what_lies_behind_a_stop_token_is_not_read() -> None:
    odds, accepted = blocks(4000, seed=4, stretch=1.4)
    verified = np.where(np.arange(4000) % 5 == 0, 2, GAMMA)  # whatever the logits say
    found = fit_rescaling(odds, np.minimum(accepted, verified), verified, np.arange(4000))
    # The same rows whole at the first two positions, and without the cut ones at the others.
    whole = fit_rescaling(odds[:, :2], accepted, full(4000), np.arange(4000))
    assert found.factors[:2] == pytest.approx(whole.factors, abs=1e-6)
    rest = odds[verified == GAMMA]
    before = np.cumprod(expit(rest * found.factors + found.shifts), axis=1)[:, 1]
    labels = accepted[verified == GAMMA] > 2

    def score(theta: np.ndarray) -> float:
        error = before * expit(theta[0] * rest[:, 2] + theta[1]) - labels
        return float(np.square(error).sum() + 5.0 * ((theta[0] - 1.0) ** 2 + theta[1] ** 2))

    best = minimize(score, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7}).x
    assert (found.factors[2], found.shifts[2]) == pytest.approx(tuple(best), abs=2e-4)


def test_a_position_of_few_accepted_blocks_keeps_its_odds() -> None:
    odds, accepted = blocks(4000, seed=6, stretch=1.6)
    odds[:, 3] = -5.0
    accepted = np.where(np.cumsum(accepted > 3) > 19, np.minimum(accepted, 3), accepted)
    assert (accepted > 3).sum() == 19
    found = fit_rescaling(odds, accepted, full(4000), np.arange(4000))
    assert found.taken
    assert found.factors[2] > 1.2
    assert (found.factors[3], found.shifts[3]) == (1.0, 0.0)


@pytest.mark.statistical
def test_where_odds_are_right_it_is_seldom_taken_and_costs_nothing() -> None:
    taken, errors = 0, []
    for seed in range(60):
        odds, accepted = blocks(2000, seed)
        found = fit_rescaling(odds, accepted, full(2000), np.arange(2000))
        taken += found.taken
        moved = odds * np.array(found.factors) + np.array(found.shifts)
        gap = np.cumprod(expit(moved), axis=1) - np.cumprod(expit(odds), axis=1)
        errors.append(np.abs(gap).mean())
    # One standard error is passed by 16 % without any cost of fitting; that makes it fewer.
    assert taken <= 10
    assert np.mean(errors) < 0.002


@pytest.mark.statistical
def test_it_mends_what_a_block_shares_beyond_its_logits() -> None:
    shape = {"shared": True, "partial": 0.18}
    fitted = simulate_leaky(20_000, seed=0, **shape)
    test = simulate_leaky(50_000, seed=9, **shape)
    model = ConditionalLikelihood("affine").fit_records(fitted.records())

    def odds(logits: np.ndarray) -> np.ndarray:
        return logits * model.slopes_ + model.intercepts_

    found = fit_rescaling(
        odds(fitted.logits), fitted.accepted, np.full(20_000, 7), np.arange(20_000)
    )
    moved = odds(test.logits) * np.array(found.factors) + np.array(found.shifts)
    before, after = (
        float(survival_ece(np.cumprod(expit(at), axis=1), test).mean())
        for at in (odds(test.logits), moved)
    )
    assert found.taken
    assert after < 0.7 * before


def test_one_prompt_is_no_evidence() -> None:
    odds, accepted = blocks(500, seed=3, stretch=2.0)
    found = fit_rescaling(odds, accepted, full(500), np.zeros(500, dtype=np.intp))
    assert not found.taken
    assert found.factors == (1.0,) * GAMMA
    assert found.shifts == (0.0,) * GAMMA
    assert found.to_dict()["brier_gain"]["standard_error"] is None


def test_extreme_odds_and_labels_of_one_class_end() -> None:
    odds = np.array([[800.0, -800.0], [-800.0, 800.0]] * 200)
    found = fit_rescaling(odds, np.full(400, 2), full(400), np.arange(400))
    assert np.isfinite([*found.factors, *found.shifts]).all()


def test_evidence_is_plain_json() -> None:
    found = SurvivalRescaling(True, (1.5,), (0.25,), 40, (0.125, 0.0625), (-0.25, 0.5))
    assert json.loads(json.dumps(found.to_dict())) == {
        "taken": True,
        "factors": [1.5],
        "shifts": [0.25],
        "rows": 40,
        "brier_gain": {"mean": 0.125, "standard_error": 0.0625},
        "log_loss_gain": {"mean": -0.25, "standard_error": 0.5},
    }
