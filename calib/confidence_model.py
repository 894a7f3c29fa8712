"""What a confidence model is to an evaluation, and where its log-odds come from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.proper_scores import probability_logits, survival_logits

# Agreement of fp32 probabilities with fp64 log-odds; fp32 products of γ factors stay far below.
_AGREEMENT = 1e-5


class ConfidenceModel(Protocol):
    """What :func:`evaluate` needs: two functions of the raw logits [N, g].

    An object may also offer ``conditional_logits(confidence_logits)`` and
    ``survival_logits(confidence_logits)``, the log-odds of the two as fp64. They give log loss
    and AUC their full range; without them σ(z / T) is used where the object has ``temperatures``
    and agrees with it, and fp32 probabilities elsewhere.
    """

    def conditional(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Conditional confidences c, [N, g] in [0, 1]."""

    def survival(self, confidence_logits: NDArray[np.float32], /) -> NDArray[np.float32]:
        """Survivals a, [N, g] in [0, 1]."""


def conditional_log_odds(
    calibration: ConfidenceModel, logits: NDArray[np.float32], conditional: NDArray[np.float32]
) -> NDArray[np.float64]:
    """[N, g] log-odds of c, from the best source the calibration has."""
    offered = getattr(calibration, "conditional_logits", None)
    if offered is not None:
        return np.asarray(offered(logits), dtype=np.float64)
    temperatures = getattr(calibration, "temperatures", None)
    if temperatures is not None:
        scaled = logits.astype(np.float64) / np.asarray(temperatures, dtype=np.float64)
        # A wrapper may carry temperatures and serve another form: believe only what agrees.
        if np.allclose(expit(scaled), conditional, rtol=0.0, atol=_AGREEMENT):
            return scaled
    return probability_logits(conditional)


def survival_log_odds(
    calibration: ConfidenceModel,
    logits: NDArray[np.float32],
    conditional_odds: NDArray[np.float64],
    survival: NDArray[np.float32],
) -> NDArray[np.float64]:
    """[N, g] log-odds of a: offered, or of the product where survival is the product."""
    offered = getattr(calibration, "survival_logits", None)
    if offered is not None:
        return np.asarray(offered(logits), dtype=np.float64)
    product = survival_logits(conditional_odds)
    if np.allclose(expit(product), survival, rtol=0.0, atol=_AGREEMENT):
        return product
    return probability_logits(survival)
