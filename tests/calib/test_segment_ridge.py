from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from calib.segment_ridge import CellStack, RidgeFit, Strengths, fit_deviations, stack_loss

Floats = NDArray[np.float64]


def stack(segments: int, gamma: int, seed: int, rows: float = 40.0) -> CellStack:
    draw = np.random.default_rng(seed)
    shape = (segments, gamma, 12)
    weight = draw.poisson(rows / 12, shape).astype(np.float64)
    logit = draw.normal(0.5, 2.0, shape)
    bias = draw.normal(0.0, 0.4, (segments, 1, 1))
    chance = 1.0 / (1.0 + np.exp(-(0.8 * logit + bias)))
    return CellStack(logit, weight, draw.binomial(weight.astype(int), chance).astype(np.float64))


def reference(cells: CellStack, place: int, parent: Floats, strengths: Strengths) -> Floats:
    """(slope, intercept) [γ, 2] of one segment by a general optimiser on e and r."""
    gamma = cells.logit.shape[1]

    def objective(values: Floats) -> float:
        shared, residual = values[:2], values[2:].reshape(gamma, 2)
        theta = parent + shared + residual
        odds = theta[:, :1] * cells.logit[place] + theta[:, 1:]
        loss = cells.weight[place] * np.logaddexp(0.0, odds) - cells.positive[place] * odds
        penalty = strengths.shared * (shared**2).sum() + strengths.residual * (residual**2).sum()
        return float(loss.sum() + 0.5 * penalty)

    found = minimize(objective, np.zeros(2 + 2 * gamma), method="BFGS", options={"gtol": 1e-7})
    return np.asarray(parent + found.x[:2] + found.x[2:].reshape(gamma, 2))


def fitted(cells: CellStack, strengths: Strengths, slope: float = 0.7) -> RidgeFit:
    shape = cells.logit.shape[:2]
    return fit_deviations(cells, np.full(shape, slope), np.full(shape, -0.1), strengths)


@pytest.mark.parametrize("strengths", [Strengths(3.0, 20.0), Strengths(50.0, 2.0)])
def test_equals_a_general_optimiser(strengths: Strengths) -> None:
    cells = stack(3, 2, seed=1)
    found = fitted(cells, strengths)
    for place in range(3):
        wanted = reference(cells, place, np.tile([0.7, -0.1], (2, 1)), strengths)
        assert found.slopes[place] == pytest.approx(wanted[:, 0], abs=2e-4)
        assert found.intercepts[place] == pytest.approx(wanted[:, 1], abs=2e-4)


def test_infinite_strengths_are_the_limit_of_large_ones() -> None:
    cells = stack(4, 3, seed=2)
    for infinite, large in (
        (Strengths(10.0, math.inf), Strengths(10.0, 1e9)),
        (Strengths(math.inf, 10.0), Strengths(1e9, 10.0)),
        (Strengths(math.inf, math.inf), Strengths(1e9, 1e9)),
    ):
        limit, near = fitted(cells, infinite), fitted(cells, large)
        assert limit.slopes == pytest.approx(near.slopes, abs=1e-5)
        assert limit.intercepts == pytest.approx(near.intercepts, abs=1e-5)


def test_levels_that_are_forbidden_add_nothing() -> None:
    cells = stack(2, 3, seed=3)
    nothing = fitted(cells, Strengths(math.inf, math.inf))
    assert nothing.slopes == pytest.approx(np.full((2, 3), 0.7))
    assert nothing.intercepts == pytest.approx(np.full((2, 3), -0.1))
    shared = fitted(cells, Strengths(1.0, math.inf))
    assert np.ptp(shared.slopes, axis=1) == pytest.approx(np.zeros(2), abs=1e-12)
    assert shared.slopes[:, 0] == pytest.approx(0.7 + shared.shared[:, 0])


def test_thin_segments_stay_and_rich_ones_leave() -> None:
    """Truth .8 and a bias; ten times the rows come nearer to it, none at all stays at .7."""
    truth = CellStack(*(np.repeat(part, 3, axis=0) for part in vars_of(stack(1, 2, 4, 600.0))))
    share = np.array([0.0, 0.02, 1.0])[:, None, None]
    cells = CellStack(truth.logit, truth.weight * share, truth.positive * share)
    found = fitted(cells, Strengths(50.0, 200.0))
    free = fitted(truth, Strengths(1e-3, 1e-3))
    assert found.slopes[0] == pytest.approx(np.full(2, 0.7))
    distance = np.abs(found.intercepts - free.intercepts).mean(axis=1)
    assert distance[0] > distance[1] > distance[2]


def vars_of(cells: CellStack) -> tuple[Floats, Floats, Floats]:
    return cells.logit, cells.weight, cells.positive


def test_separated_labels_end_at_a_finite_number() -> None:
    logit = np.array([[[-2.0, -1.0, 1.0, 2.0]]])
    weight = np.full_like(logit, 1e6)
    cells = CellStack(logit, weight, weight * (logit > 0))
    found = fitted(cells, Strengths(10.0, 30.0))
    assert np.isfinite(found.slopes).all()
    assert found.slopes[0, 0] > 5.0


def test_segments_do_not_see_each_other() -> None:
    cells = stack(5, 2, seed=6)
    together = fitted(cells, Strengths(10.0, 100.0))
    alone = fitted(cells.take(np.array([3])), Strengths(10.0, 100.0))
    assert together.slopes[3] == pytest.approx(alone.slopes[0], abs=1e-7)


def test_loss_by_hand() -> None:
    """Two rows at z = ln 3 (σ = 3/4), one accepted: −ln(3/4) − ln(1/4)."""
    cells = CellStack(*(np.full((1, 1, 1), value) for value in (math.log(3.0), 2.0, 1.0)))
    loss = stack_loss(cells, np.ones((1, 1)), np.zeros((1, 1)))
    assert loss == pytest.approx([-math.log(3 / 16)])
