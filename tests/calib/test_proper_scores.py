from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import expit

from calib.proper_scores import brier_score, log_losses, probability_logits, survival_logits
from calib.reliability import ReliabilitySums


def test_r08_cross_entropy_and_brier_of_soft_labels() -> None:
    logit = math.log(0.6 / 0.4)
    assert log_losses([logit, logit], [0.5, 0.7]).mean() == pytest.approx(0.673012, abs=1e-6)
    sums = ReliabilitySums.from_predictions([0.6, 0.6], [0.5, 0.7]).position(0)
    assert brier_score(sums) == pytest.approx(0.01, abs=1e-7)


@pytest.mark.parametrize(
    ("logit", "label", "loss"),
    [
        (40.0, 0, 40.0),
        (-40.0, 1, 40.0),
        (40.0, 1, math.exp(-40)),
        (3.0e38, 0, 3.0e38),
        (3.0e38, 1, 0.0),
        (0.0, 0.3, math.log(2)),
    ],
)
def test_r13_loss_of_saturated_logits(logit: float, label: float, loss: float) -> None:
    value = log_losses(np.float32([logit]), [label])
    assert value[0] == pytest.approx(float(np.float32(loss)), rel=1e-6)


def test_no_loss_is_negative() -> None:
    z = np.linspace(-800, 800, 4001)
    for label in (0.0, 1e-9, 0.5, 1.0):
        assert log_losses(z, np.full_like(z, label)).min() >= 0.0


@pytest.mark.parity
def test_agrees_with_sklearn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    z = rng.normal(size=1000)
    y = (rng.random(1000) < expit(z)).astype(int)
    assert log_losses(z, y).mean() == pytest.approx(metrics.log_loss(y, expit(z)), rel=1e-12)
    sums = ReliabilitySums.from_predictions(expit(z), y).position(0)
    assert brier_score(sums) == pytest.approx(metrics.brier_score_loss(y, expit(z)), abs=1e-7)


def test_brier_of_nothing() -> None:
    assert brier_score(ReliabilitySums.zeros(1).position(0)) is None


def test_probability_logits_are_finite_and_invert_the_sigmoid() -> None:
    p = np.array([0.0, 1e-45, 0.25, 1.0 - 2.0**-24, 1.0], dtype=np.float32)
    logits = probability_logits(p)
    assert np.isfinite(logits).all()
    assert (np.diff(logits) > 0).all()
    assert np.array_equal(expit(logits).astype(np.float32), p)


def _exact_log_odds(conditional: list[float]) -> list[float]:
    """log a/(1 - a) of products of exact fractions."""
    survival, result = Fraction(1), []
    for logit in conditional:
        odds = Fraction(math.exp(logit))
        survival *= odds / (1 + odds)
        ratio = survival / (1 - survival)
        result.append(math.log(ratio.numerator) - math.log(ratio.denominator))
    return result


@pytest.mark.parametrize("row", [[0.3, -1.0, 2.0], [30.0, 35.0, 33.0], [-20.0, 4.0, 50.0]])
def test_survival_logits_against_exact_fractions(row: list[float]) -> None:
    assert survival_logits([row])[0] == pytest.approx(_exact_log_odds(row), rel=1e-12)


def test_r13_survival_loss_without_log_of_zero() -> None:
    """Three factors that all round to 1: a rejection costs 40 - log 3, an acceptance 3e-40…"""
    odds = survival_logits(np.full((1, 3), 40.0))
    assert (expit(odds).astype(np.float32) == 1.0).all()
    losses = log_losses(odds, np.zeros((1, 3)))[0]
    assert losses == pytest.approx([40.0, 40.0 - math.log(2), 40.0 - math.log(3)], rel=1e-12)
    assert log_losses(odds, np.ones((1, 3)))[0, 2] == pytest.approx(3 * math.exp(-40), rel=1e-9)


@pytest.mark.parametrize("logit", [1e5, -1e5, 3e38, -3e38])
def test_survival_logits_stay_finite(logit: float) -> None:
    assert np.isfinite(survival_logits(np.full((2, 7), logit))).all()
