from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from calib.logistic_newton import LogisticFits, fit_logistic, log_loss


def plain(features: np.ndarray, labels: np.ndarray, **options: np.ndarray) -> LogisticFits:
    """One fit on rows of weight 1: features [M, P]."""
    return weighted(features, np.ones(len(labels)), labels, **options)


def weighted(
    features: np.ndarray, weight: np.ndarray, positive: np.ndarray, **options: np.ndarray
) -> LogisticFits:
    size = features.shape[1]
    given = {"ridge": np.zeros(size), "center": np.zeros(size)} | options
    return fit_logistic(
        features.T[None],
        weight[None],
        positive[None],
        ridge=given["ridge"][None],
        center=given["center"][None],
    )


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    features = np.column_stack([np.ones(500), draw.normal(size=(500, 2))])
    chance = 1 / (1 + np.exp(-features @ [0.3, 1.0, -0.5]))
    return features, (draw.random(500) < chance).astype(float)


def test_intercept_alone_is_the_log_odds() -> None:
    fit = plain(np.ones((1, 1)), np.array([0.7]))
    assert fit.coefficients[0, 0] == pytest.approx(np.log(0.7 / 0.3), abs=1e-12)
    assert fit.chance[0, 0] == pytest.approx(0.7, abs=1e-12)
    assert fit.information[0, 0, 0] == pytest.approx(0.21)
    loss = log_loss(fit.odds, np.ones((1, 1)), np.full((1, 1), 0.7))
    assert loss == pytest.approx([0.6108643020548935])  # entropy of .7 in nats
    assert fit.loss(np.ones((1, 1)), np.full((1, 1), 0.7)) == pytest.approx(loss, rel=1e-12)


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
    assert fit.coefficients[0] == pytest.approx(found, abs=1e-6)
    assert fit.converged[0]
    assert fit.steps[0] < 10


def test_weights_are_repeated_rows() -> None:
    features, labels = drawn(1)
    weight = np.random.default_rng(2).integers(1, 4, 500)
    cells = weighted(features, weight.astype(float), weight * labels)
    repeated = plain(np.repeat(features, weight, axis=0), np.repeat(labels, weight))
    assert cells.coefficients == pytest.approx(repeated.coefficients, abs=1e-9)


def test_separated_classes_end_finite() -> None:
    features = np.array([[1.0, 1.0], [1.0, -1.0]])
    fit = plain(features, np.array([1.0, 0.2]))  # quasi-separated: the first is always 1
    chance = 1 / (1 + np.exp(-features @ fit.coefficients[0]))
    assert np.isfinite(fit.coefficients).all()
    assert not fit.converged[0]
    assert chance == pytest.approx([1.0, 0.2], abs=1e-6)


def test_what_nothing_informs_keeps_its_start() -> None:
    features = np.array([[1.0, 0.0], [1.0, 0.0]])
    fit = plain(features, np.array([1.0, 0.0]), center=np.array([0.5, 3.0]))
    assert fit.coefficients[0] == pytest.approx([0.0, 3.0])


def test_collinear_features_still_fit() -> None:
    features = np.array([[1.0, 2.0, 1.0], [1.0, 2.0, -1.0]])
    fit = plain(features, np.array([0.8, 0.3]))
    chance = 1 / (1 + np.exp(-features @ fit.coefficients[0]))
    assert chance == pytest.approx([0.8, 0.3], abs=1e-9)


def test_a_start_that_saturates_everything_is_left() -> None:
    z = np.array([[2.0], [-1.0], [0.5], [-2.0], [1.0], [-0.5]])
    fit = plain(z, np.array([1.0, 0, 0, 0, 1, 1]), center=np.array([1e6]))
    assert 1.0 / fit.coefficients[0, 0] == pytest.approx(0.740131, rel=1e-6)


def test_cells_of_weight_zero_say_nothing() -> None:
    features, labels = drawn(4)
    more = np.concatenate([features, np.full((20, 3), 9.0)])
    weight = np.repeat([1.0, 0.0], [500, 20])
    padded = weighted(more, weight, np.concatenate([labels, np.zeros(20)]))
    assert padded.coefficients == pytest.approx(plain(features, labels).coefficients, abs=1e-12)


def test_fits_do_not_see_each_other() -> None:
    """Ordinary, separated, saturated, empty, wide first steps: the same bits alone and together."""
    draw = np.random.default_rng(5)
    logits = np.sort(draw.normal(2.0, 3.0, (6, 1024)), axis=1)
    weight = draw.integers(0, 9, (6, 1024)).astype(float)
    positive = draw.binomial(weight.astype(int), 1 / (1 + np.exp(-logits / 2.5))).astype(float)
    positive[1] = weight[1] * (logits[1] > 0)
    weight[2, 3:] = positive[2, 3:] = 0.0
    weight[3] = positive[3] = 0.0
    features = np.stack([logits, np.ones_like(logits)], axis=1)
    ridge = np.tile([0.0, 3.0], (6, 1))
    center = np.tile([1.0, 0.0], (6, 1))
    center[4, 0] = 1e6

    def fitted(chosen: slice) -> LogisticFits:
        parts = (array[chosen] for array in (features, weight, positive))
        return fit_logistic(*parts, ridge=ridge[chosen], center=center[chosen])

    together = fitted(slice(None))
    assert not together.converged[1]
    assert together.converged[[0, 3, 4, 5]].all()
    assert len(set(together.steps.tolist())) > 2
    for index in range(6):
        alone = fitted(slice(index, index + 1))
        for name in LogisticFits.__dataclass_fields__:
            assert np.array_equal(getattr(alone, name)[0], getattr(together, name)[index]), name
