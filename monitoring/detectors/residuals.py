"""Bounded residuals y − prediction whose mean is 0 while the predictions hold.

All are sums over positions divided by γ, a constant, and lie in [−1, 1]. Dividing by the verified
length ℓ instead would be wrong: ℓ depends on the logits, a later logit reveals whether an earlier
token was accepted, and the quotient has mean −.018 under perfect predictions.

Letters: N rows, γ (gamma) positions; arrays use index 0 for position 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calib.errors import RecordError
from monitoring.detectors.observations import Observations

Floats = NDArray[np.float64]


def survival_residual(observations: Observations) -> Floats:
    """R = (n − Σ_{j≤ℓ} S_j) / γ, [N]: accepted tokens beyond the forecast, per position.

    Its mean given the past before the block is 0 when S is the survival given z_{≤j}, for each j,
    and {ℓ ≥ j} is decided by what is known at j.

    Raises:
        RecordError: observations without survival.
    """
    if observations.survival is None:
        raise RecordError("survival", None, "give the survival model's predictions")
    expected = np.zeros(len(observations))
    for position, survival in enumerate(observations.survival.T):
        expected += survival * (observations.verified > position)
    residual: Floats = (observations.accepted - expected) / observations.gamma
    return residual


def conditional_residual(observations: Observations) -> Floats:
    """Σ over observed labels of (y − c) / γ, [N]."""
    residual: Floats = _residuals(observations).sum(axis=1) / observations.gamma
    return residual


def slope_residual(observations: Observations) -> Floats:
    """Σ over observed labels of (y − c)(2c − 1) / γ, [N]; 2c − 1 = tanh(logit(c) / 2).

    Negative on average when confidence is too extreme at both ends, which leaves the plain
    residual at 0.
    """
    lean = 2.0 * observations.conditional.astype(np.float64) - 1.0
    residual: Floats = (_residuals(observations) * lean).sum(axis=1) / observations.gamma
    return residual


def position_residuals(observations: Observations) -> Floats:
    """y − c by position, [N, γ]; NaN where no label was observed."""
    residuals = _residuals(observations)
    residuals[~_observed(observations)] = np.nan
    return residuals


def _observed(observations: Observations) -> NDArray[np.bool_]:
    index = np.arange(observations.gamma)
    reached = np.minimum(observations.accepted.astype(np.int16) + 1, observations.verified)
    observed: NDArray[np.bool_] = index < reached[:, None]
    return observed


def _residuals(observations: Observations) -> Floats:
    """y − c where observed, 0 elsewhere."""
    index = np.arange(observations.gamma)
    labels = index < observations.accepted[:, None]
    residuals: Floats = labels - observations.conditional.astype(np.float64)
    return np.where(_observed(observations), residuals, 0.0)
