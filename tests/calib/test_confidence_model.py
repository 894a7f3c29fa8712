from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from calib.calibration import Calibration
from calib.confidence_model import conditional_log_odds, survival_log_odds
from calib.proper_scores import survival_logits

LOGITS = np.array([[40.0, 30.0], [-2.0, 1.0]], dtype=np.float32)


class Bare:
    """A product of σ(2z), told as probabilities only."""

    def conditional(self, confidence_logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return expit(2.0 * confidence_logits).astype(np.float32)

    def survival(self, confidence_logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.cumprod(self.conditional(confidence_logits), axis=1, dtype=np.float32)


class WithLogits(Bare):
    def conditional_logits(self, confidence_logits: NDArray[np.float32]) -> NDArray[np.float64]:
        return 2.0 * confidence_logits.astype(np.float64)


class WithWrongTemperatures(Bare):
    temperatures = (1.0, 1.0)


class WithOwnSurvival(WithLogits):
    """Survival that is no product: a second model, as log-odds."""

    def survival(self, confidence_logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return expit(confidence_logits).astype(np.float32)

    def survival_logits(self, confidence_logits: NDArray[np.float32]) -> NDArray[np.float64]:
        return confidence_logits.astype(np.float64)


def _odds(model: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    conditional, survival = model.conditional(LOGITS), model.survival(LOGITS)
    odds = conditional_log_odds(model, LOGITS, conditional)
    return odds, survival_log_odds(model, LOGITS, odds, survival)


def test_offered_log_odds_keep_their_range() -> None:
    conditional, survival = _odds(WithLogits())
    assert conditional.tolist() == [[80.0, 60.0], [-4.0, 2.0]]
    assert survival == pytest.approx(survival_logits(conditional))


def test_temperatures_give_log_odds_of_a_calibration() -> None:
    conditional, survival = _odds(Calibration.from_temperatures([2.0, 0.5], gamma=2))
    assert conditional == pytest.approx(np.array([[20.0, 60.0], [-1.0, 2.0]]))
    assert survival[0, 1] == pytest.approx(20.0, abs=1e-6)


@pytest.mark.parametrize("model", [Bare(), WithWrongTemperatures()])
def test_probabilities_are_the_last_resort(model: Any) -> None:
    """Saturated cells end at fp32's range; temperatures that contradict are not believed."""
    conditional, _ = _odds(model)
    assert conditional[0] == pytest.approx([17.33, 17.33], abs=0.01)
    assert conditional[1] == pytest.approx([-4.0, 2.0], abs=1e-5)


def test_survival_that_is_no_product() -> None:
    _, survival = _odds(WithOwnSurvival())
    assert survival == pytest.approx(LOGITS.astype(float))


def test_survival_that_is_no_product_without_log_odds() -> None:
    class Silent(WithLogits):
        def survival(self, confidence_logits: NDArray[np.float32]) -> NDArray[np.float32]:
            return expit(confidence_logits).astype(np.float32)

    _, survival = _odds(Silent())
    assert survival[1] == pytest.approx(LOGITS[1], abs=1e-5)
