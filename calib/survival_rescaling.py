"""A last sequential step on rows that were verified fully: factors and shifts of served odds.

Segments are fitted to conditional labels, which a trimmed log has too. Where rows were verified
fully, their hard labels say more: what positions share beyond their logits, and where acceptance
bends away from a line in the logit. So position by position, earlier ones fixed, the served odds
η_k of a_k = a_{k-1}·σ(f_k η_k + h_k) get the factor and the shift with the smallest Brier score of
survival, Σ(a_k - [n >= k])²: sequential scaling (paper §3.2.1) with a proper score in place of its
bins. Squared error, because a scheduler adds survivals up: what it loses grows with their errors
and not with those of their logarithms.

The step is taken where it lowers the score of rows outside the fit by more than one standard error
and does not raise their log loss by as much: squared errors do not see a tail that grows too sure.
A position at which fewer than 20 blocks were accepted, or rejected, keeps its odds.

Read are positions with l >= k: of a row that a stop token cut, what lies behind is not known.

Letters: N rows, g = gamma draft positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.canonical_json import round_significant
from calib.clusters import clustered_mean

__all__ = ["RIDGE", "SurvivalRescaling", "fit_rescaling"]

Floats = NDArray[np.float64]

# Pull to no change: the squared error that a factor or shift which is off by √2 costs. From 1 to 10
# the shipped telemetry shows no difference; where nothing is to be mended, 10 costs least.
RIDGE = 10.0
_FOLDS = 2
_FEWEST = 20  # of either label
_CLIP = 1e-6  # as the gate: fp32 knows no closer to 0 or 1
_MAX_STEPS = 50
_SMALLEST_STEP = 1e-6
_GAIN = 1e-9  # of squared error a row; smaller ones change no published digit


@dataclass(frozen=True, slots=True)
class SurvivalRescaling:
    """What the step found.

    Attributes:
        taken: whether the step is taken.
        factors: [g] f_k of the odds; 1 where the step is not taken.
        shifts: [g] h_k; 0 where it is not taken.
        rows: it was fitted on.
        brier_gain: Brier score, summed over positions, that it saves a row outside the fit, and
            its standard error; rows of one cluster are one piece of luck.
        log_loss_gain: the same of the log loss, in nats.
    """

    taken: bool
    factors: tuple[float, ...]
    shifts: tuple[float, ...]
    rows: int
    brier_gain: tuple[float, float]
    log_loss_gain: tuple[float, float]

    def not_taken(self) -> SurvivalRescaling:
        """The same evidence, and the odds as they were."""
        gamma = len(self.factors)
        return replace(self, taken=False, factors=(1.0,) * gamma, shifts=(0.0,) * gamma)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an unknown standard error is None."""
        return {
            "taken": self.taken,
            "factors": list(self.factors),
            "shifts": list(self.shifts),
            "rows": self.rows,
            "brier_gain": _plain(self.brier_gain),
            "log_loss_gain": _plain(self.log_loss_gain),
        }


def fit_rescaling(
    odds: Floats,  # [N, g] served, log-odds
    accepted: NDArray[np.integer],  # [N] n
    verified: NDArray[np.integer],  # [N] l; g but where a stop token cut the row
    clusters: NDArray[np.intp],  # [N] 0 … clusters - 1
    *,
    ridge: float = RIDGE,
) -> SurvivalRescaling:
    """Fit the step on all rows, judged by fits on either half of the clusters.

    Examples:
        >>> odds = np.full((400, 1), 2.0)  # says .88 where every second block is accepted
        >>> accepted = np.arange(400) % 2
        >>> found = fit_rescaling(odds, accepted, np.ones(400), np.arange(400) // 2)
        >>> found.taken, round(float(expit(found.factors[0] * 2.0 + found.shifts[0])), 1)
        (True, 0.5)
    """
    place = np.arange(odds.shape[1])
    labels = (accepted[:, None] > place).astype(np.float64)
    known = (verified[:, None] > place).astype(np.float64)
    fold = clusters % _FOLDS
    saved = np.zeros((2, len(odds)))
    for number in range(_FOLDS):
        out = fold == number
        if out.any() and not out.all():
            factors, shifts = _fitted(odds[~out], labels[~out], known[~out], ridge)
            moved = odds[out] * factors + shifts
            before = _scores(odds[out], labels[out], known[out])
            saved[:, out] = before - _scores(moved, labels[out], known[out])
    each_row = np.ones(len(odds))
    brier, log_loss = (clustered_mean(each, each_row, clusters) for each in saved)
    taken = brier[0] > brier[1] and log_loss[0] > -log_loss[1]
    factors, shifts = np.ones(odds.shape[1]), np.zeros(odds.shape[1])
    if taken:
        factors, shifts = _fitted(odds, labels, known, ridge)
    return SurvivalRescaling(
        taken, tuple(factors.tolist()), tuple(shifts.tolist()), len(odds), brier, log_loss
    )


def _plain(gain: tuple[float, float]) -> dict[str, float | None]:
    value, error = gain
    return {
        "mean": round_significant(value),
        "standard_error": round_significant(error) if math.isfinite(error) else None,
    }


def _scores(odds: Floats, labels: Floats, known: Floats) -> Floats:
    """[2, N] Brier scores and log losses of survival, summed over known positions."""
    survival = np.cumprod(expit(odds), axis=1)
    p = np.clip(survival, _CLIP, 1.0 - _CLIP)
    loss = -np.where(labels == 1.0, np.log(p), np.log1p(-p))
    error = np.square(survival - labels)
    return np.stack([(known * error).sum(axis=1), (known * loss).sum(axis=1)])


def _fitted(odds: Floats, labels: Floats, known: Floats, ridge: float) -> tuple[Floats, Floats]:
    """[g] factors and [g] shifts."""
    reached = np.ones(len(odds))
    found = []
    for position in range(odds.shape[1]):
        features = np.stack([odds[:, position], np.ones(len(odds))], axis=1)
        wanted, given = labels[:, position], known[:, position]
        accepted = float(given @ wanted)
        if min(accepted, float(given.sum()) - accepted) < _FEWEST:
            found.append(np.array([1.0, 0.0]))
        else:
            found.append(_least_squares(features, reached, wanted, given, ridge))
        reached = reached * expit(features @ found[-1])
    numbers = np.array(found)
    return numbers[:, 0], numbers[:, 1]


def _least_squares(
    features: Floats, reached: Floats, labels: Floats, known: Floats, ridge: float
) -> Floats:
    """(f, h) that minimises Σ(reached·σ(f η + h) - y)² + ridge·[(f - 1)² + h²]/2 over known rows.

    Gauss-Newton steps, halved until they improve.
    """
    center = np.array([1.0, 0.0])
    theta = center

    def objective(at: Floats) -> float:
        error = known * (reached * expit(features @ at) - labels)
        return float(error @ error + 0.5 * ridge * np.square(at - center).sum())

    value = objective(theta)
    for _ in range(_MAX_STEPS):
        factor = expit(features @ theta)
        slope = features * (known * reached * factor * (1.0 - factor))[:, None]
        gradient = 2.0 * slope.T @ (labels - reached * factor) - ridge * (theta - center)
        step = np.linalg.solve(2.0 * slope.T @ slope + ridge * np.eye(2), gradient)
        size = 1.0
        while (found := objective(theta + size * step)) >= value:
            size *= 0.5
            if size < _SMALLEST_STEP:
                return theta
        gain, theta, value = value - found, theta + size * step, found
        if gain <= _GAIN * len(labels):
            return theta
    return theta
