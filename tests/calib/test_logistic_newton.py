from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from calib.logistic_newton import LogisticFit, fit_logistic


def plain(features: np.ndarray, labels: np.ndarray, **options: np.ndarray) -> LogisticFit:
    size = features.shape[1]
    defaults = {"ridge": np.zeros(size), "center": np.zeros(size)}
    return fit_logistic(features, np.ones(len(labels)), labels, **{**defaults, **options})


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    features = np.column_stack([np.ones(500), draw.normal(size=(500, 2))])
    chance = 1 / (1 + np.exp(-features @ [0.3, 1.0, -0.5]))
    return features, (draw.random(500) < chance).astype(float)


def test_intercept_alone_is_the_log_odds() -> None:
    fit = plain(np.ones((1, 1)), np.array([0.7]))
    assert fit.coefficients[0] == pytest.approx(np.log(0.7 / 0.3), abs=1e-12)
    assert fit.loss == pytest.approx(0.6108643020548935)  # entropy of .7 in nats
    assert fit.information[0, 0] == pytest.approx(0.21)


@pytest.mark.parametrize("ridge", [0.0, 4.0])
def test_agrees_with_a_general_optimiser(ridge: float) -> None:
    features, labels = drawn(0)
    center = np.array([0.0, 1.0, 0.2])

    def objective(theta: np.ndarray) -> float:
        odds = features @ theta
        penalty = 0.5 * ridge * float(np.square(theta - center).sum())
        return float(np.logaddexp(0, odds).sum() - labels @ odds) + penalty

    found = minimize(objective, center, method="BFGS", options={"gtol": 1e-8}).x
    fit = plain(features, labels, ridge=np.full(3, ridge), center=center)
    assert fit.coefficients == pytest.approx(found, abs=1e-6)
    assert fit.converged
    assert fit.steps < 10


def test_weights_are_repeated_rows() -> None:
    features, labels = drawn(1)
    weight = np.random.default_rng(2).integers(1, 4, 500)
    zeros = np.zeros(3)
    weighted = fit_logistic(
        features, weight.astype(float), weight * labels, ridge=zeros, center=zeros
    )
    repeated = plain(np.repeat(features, weight, axis=0), np.repeat(labels, weight))
    assert weighted.coefficients == pytest.approx(repeated.coefficients, abs=1e-9)


def test_separated_classes_end_finite() -> None:
    features = np.array([[1.0, 1.0], [1.0, -1.0]])
    fit = plain(features, np.array([1.0, 0.2]))  # quasi-separated: the first is always 1
    chance = 1 / (1 + np.exp(-features @ fit.coefficients))
    assert np.isfinite(fit.coefficients).all()
    assert not fit.converged
    assert chance == pytest.approx([1.0, 0.2], abs=1e-6)


def test_what_nothing_informs_keeps_its_start() -> None:
    features = np.array([[1.0, 0.0], [1.0, 0.0]])
    fit = plain(features, np.array([1.0, 0.0]), center=np.array([0.5, 3.0]))
    assert fit.coefficients == pytest.approx([0.0, 3.0])


def test_collinear_features_still_fit() -> None:
    features = np.array([[1.0, 2.0, 1.0], [1.0, 2.0, -1.0]])
    fit = plain(features, np.array([0.8, 0.3]))
    chance = 1 / (1 + np.exp(-features @ fit.coefficients))
    assert chance == pytest.approx([0.8, 0.3], abs=1e-9)


def test_a_start_that_saturates_everything_is_left() -> None:
    z = np.array([[2.0], [-1.0], [0.5], [-2.0], [1.0], [-0.5]])
    fit = plain(z, np.array([1.0, 0, 0, 0, 1, 1]), center=np.array([1e6]))
    assert 1.0 / fit.coefficients[0] == pytest.approx(0.740131, rel=1e-6)
