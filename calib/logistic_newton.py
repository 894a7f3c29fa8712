"""Penalised logistic likelihood of a few parameters on weighted cells, by damped Newton steps.

Minimises Σ w·[log(1 + e^η) - ȳη] + ½ Σ ridge·(θ - center)² with η = Xθ. The objective is convex, so
a step that is halved until it improves ends at the optimum; labels may be soft. Where it has no
finite optimum (separated classes, ridge 0) the steps end once the likelihood can hardly rise.

Letters: M cells, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

__all__ = ["LogisticFit", "fit_logistic"]

Floats = NDArray[np.float64]

_MAX_STEPS = 60
_MAX_HALVINGS = 40
_COLLINEAR = 1e-12  # determinant, and relative singular value, that is rounding
# Half the Newton decrement is what is left to gain; this much of a row's loss changes no number.
_GAIN_PER_WEIGHT = 1e-12
_SEPARATED_GAIN = 1e-9  # a likelihood that rises by less than this per row …
_FLAT_START = 1e-3  # mean curvature below which Newton steps from there overshoot by far
_SEPARATED_STEP = 0.1  # … while log-odds of some cell still move by this much a step
_SATURATED_ODDS = 40.0  # beyond: an outlier, whose probability is 0 or 1 in fp64
# Log-odds that move by at most ½ in a full step: the convexity bound then proves a decrease of 0.4
# of the decrement, and the objective need not be evaluated.
_SAFE_STEP = 0.5


@dataclass(frozen=True, eq=False, slots=True)
class LogisticFit:
    """The optimum.

    Attributes:
        coefficients: [P] θ.
        loss: Σ w·log loss without the penalty, in nats.
        information: [P, P] second derivative of loss and penalty at θ.
        converged: False where the likelihood has no finite optimum.
        steps: Newton steps.
    """

    coefficients: Floats
    loss: float
    information: Floats
    converged: bool
    steps: int


def fit_logistic(
    features: Floats,  # [M, P] of size near 1
    weight: Floats,  # [M] > 0
    positive: Floats,  # [M] Σwy, 0 … weight
    *,
    ridge: Floats,  # [P] >= 0
    center: Floats,  # [P] what the ridge pulls to; also the start, unless it saturates every cell
) -> LogisticFit:
    """Fit θ; see the module docstring.

    Directions in which neither data nor ridge say anything keep their start.

    Examples:
        >>> one = np.ones((1, 1))
        >>> fit = fit_logistic(one, one[0] * 10, one[0] * 7, ridge=np.zeros(1), center=np.zeros(1))
        >>> round(float(fit.coefficients[0]), 4)  # log(.7 / .3)
        0.8473
    """
    total = max(float(weight.sum()), 1e-300)
    columns = np.ascontiguousarray(features.T)  # long rows: broadcasting over them is fast
    theta, odds = _start(columns, weight, center)
    for step in range(_MAX_STEPS):
        gradient, hessian = _derivatives(columns, odds, weight, positive)
        gradient = gradient + ridge * (theta - center)
        hessian.flat[:: len(theta) + 1] += ridge
        direction = _solve(hessian, gradient)
        change = direction @ columns
        largest = float(np.abs(change).max(initial=0.0))
        decrement = float(gradient @ direction)
        if decrement <= _SEPARATED_GAIN * total and _runs_away(odds, change):
            return LogisticFit(theta, _loss(odds, weight, positive), hessian, False, step)
        if decrement <= _GAIN_PER_WEIGHT * total:
            # The last, tiny step costs nothing and squares the error once more.
            loss = _loss(odds - change, weight, positive)
            return LogisticFit(theta - direction, loss, hessian, True, step)
        size = 1.0
        if largest > _SAFE_STEP:
            shift = theta - center
            size = _improving_size(weight, positive, ridge, odds, shift, change, direction)
        if size == 0.0:
            return LogisticFit(theta, _loss(odds, weight, positive), hessian, True, step)
        theta = theta - size * direction
        odds = odds - size * change
    gradient, hessian = _derivatives(columns, odds, weight, positive)
    hessian = hessian + np.diag(ridge)
    return LogisticFit(theta, _loss(odds, weight, positive), hessian, False, _MAX_STEPS)


def _runs_away(odds: Floats, change: Floats) -> bool:
    """Whether log-odds of some cell still grow, among those that are not saturated already."""
    alive = np.abs(odds) < _SATURATED_ODDS
    return bool((np.abs(change[alive]) > _SEPARATED_STEP).any())


def _improving_size(
    weight: Floats,
    positive: Floats,
    ridge: Floats,
    odds: Floats,  # [M] where the step starts
    shift: Floats,  # [P] θ - center there
    change: Floats,  # [M] of the odds by a full step
    direction: Floats,  # [P] the full step
) -> float:
    """The largest of 1, ½, ¼, … that lowers the objective; 0 where none does beyond rounding."""
    start = _objective(odds, weight, positive, shift, ridge)
    size = 1.0
    for _ in range(_MAX_HALVINGS):
        moved = odds - size * change
        if _objective(moved, weight, positive, shift - size * direction, ridge) < start:
            return size
        size *= 0.5
    return 0.0


def _start(columns: Floats, weight: Floats, center: Floats) -> tuple[Floats, Floats]:
    """The center, or 0, where curvature is largest, if at the center there is none left."""
    theta = center.astype(np.float64)
    odds = theta @ columns
    chance = expit(odds)
    if float(weight @ (chance * (1.0 - chance))) < _FLAT_START * float(weight.sum()):
        theta = np.zeros_like(theta)
        odds = np.zeros_like(odds)
    return theta, odds


def _derivatives(
    columns: Floats, odds: Floats, weight: Floats, positive: Floats
) -> tuple[Floats, Floats]:
    chance = expit(odds)
    gradient = columns @ (weight * chance - positive)
    curvature = weight * chance * (1.0 - chance)
    return gradient, (columns * curvature) @ columns.T


def _solve(hessian: Floats, gradient: Floats) -> Floats:
    """The Newton direction; the shortest one where the Hessian is singular."""
    if len(gradient) == 1:
        curvature = float(hessian[0, 0])
        return gradient / curvature if curvature > 0.0 else np.zeros(1)
    # Equal scales first, so that "singular" means collinear and not merely small.
    scale = np.sqrt(np.diag(hessian))
    scale = np.where(scale > 0.0, scale, 1.0)
    if len(gradient) == 2 and min(hessian[0, 0], hessian[1, 1]) > 0.0:
        # By hand: LAPACK's calls cost more than all the rest of a step on a thousand cells.
        overlap = float(hessian[0, 1] / (scale[0] * scale[1]))
        determinant = 1.0 - overlap * overlap
        if determinant > _COLLINEAR:
            first, second = gradient / scale
            alone = np.array([first - overlap * second, second - overlap * first])
            return np.asarray(alone / (determinant * scale))
    alike = hessian / np.outer(scale, scale)
    if np.linalg.det(alike) > _COLLINEAR:
        solution = np.linalg.solve(alike, gradient / scale)
    else:
        solution = np.linalg.lstsq(alike, gradient / scale, rcond=_COLLINEAR)[0]
    return np.asarray(solution / scale)


def _loss(odds: Floats, weight: Floats, positive: Floats) -> float:
    return float(weight @ np.logaddexp(0.0, odds) - positive @ odds)


def _objective(
    odds: Floats, weight: Floats, positive: Floats, shift: Floats, ridge: Floats
) -> float:
    with np.errstate(over="ignore", invalid="ignore"):  # a wild trial step: it is not taken
        return _loss(odds, weight, positive) + 0.5 * float(ridge @ (shift * shift))
