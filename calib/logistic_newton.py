"""Penalised logistic likelihoods of a few parameters on weighted cells, by damped Newton steps.

Each of G fits minimises Σ w·[log(1 + e^η) - ȳη] + ½ Σ ridge·(θ - center)² with η = Xθ. The
objective is convex, so a step that is halved until it improves ends at the optimum; labels may be
soft. Where it has no finite optimum (separated classes, ridge 0) the steps end once the likelihood
can hardly rise.

The fits share array operations and nothing else: the numbers of one are the same bits whatever is
fitted beside it.

Letters: G fits, M cells, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LogisticFits", "fit_logistic", "log_loss"]

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

_MAX_STEPS = 60
_MAX_HALVINGS = 40
_COLLINEAR = 1e-12  # determinant, and relative singular value, that is rounding
# Half the Newton decrement is what is left to gain; this much of a row's loss changes no number.
_GAIN_PER_WEIGHT = 1e-12
_SEPARATED_GAIN = 1e-9  # a likelihood that rises by less than this per row …
_FLAT_START = 1e-3  # mean curvature below which Newton steps from there overshoot by far
_SEPARATED_STEP = 0.1  # … while log-odds of some cell still move by this much a step
_SATURATED_ODDS = 40.0  # beyond: an outlier, whose probability is 0 or 1 in fp64
# Log-odds that move by at most R in a full step: |f'''| <= R f'' along it then proves a decrease of
# 1 - (e^R - R - 1) / R² of the decrement, .12 here, and the objective need not be evaluated.
_SAFE_STEP = 1.5


@dataclass(frozen=True, eq=False, slots=True)
class LogisticFits:
    """The optima.

    Attributes:
        coefficients: [G, P] θ.
        odds: [G, M] η there.
        chance: [G, M] σ(η).
        information: [G, P, P] second derivative of loss and penalty at θ.
        converged: [G] False where the likelihood has no finite optimum.
        steps: [G] Newton steps.
    """

    coefficients: Floats
    odds: Floats
    chance: Floats
    information: Floats
    converged: Booleans
    steps: NDArray[np.intp]

    def loss(self, weight: Floats, positive: Floats) -> Floats:
        """[G] Σ w·log loss of the fitted cells [G, M], in nats."""
        # As log_loss, from a known σ(η): a third of the time.
        softplus = np.maximum(self.odds, 0.0) - np.log(np.maximum(self.chance, 1.0 - self.chance))
        return np.asarray((weight * softplus - positive * self.odds).sum(axis=1))


def fit_logistic(
    features: Floats,  # [G, P, M] of size near 1
    weight: Floats,  # [G, M] >= 0; a cell of weight 0 says nothing
    positive: Floats,  # [G, M] Σwy, 0 … weight
    *,
    ridge: Floats,  # [G, P] >= 0
    center: Floats,  # [G, P] what the ridge pulls to
    start: Floats | None = None,  # [G, P], left for 0 if it saturates all cells; center when None
) -> LogisticFits:
    """Fit every θ; see the module docstring.

    Directions in which neither data nor ridge say anything keep their start.

    Examples:
        >>> one = np.ones((1, 1))
        >>> zero = np.zeros((1, 1))
        >>> fit = fit_logistic(one[None], 10 * one, 7 * one, ridge=zero, center=zero)
        >>> round(float(fit.coefficients[0, 0]), 4)  # log(.7 / .3)
        0.8473
    """
    total = np.maximum(weight.sum(axis=1), 1e-300)
    whole = _Task(features, weight, positive, ridge, center, total)
    state = _started(whole, center if start is None else start)
    found = LogisticFits(
        coefficients=np.empty_like(state.theta),
        odds=np.empty_like(state.odds),
        chance=np.empty_like(state.chance),
        information=np.empty((*state.theta.shape, state.theta.shape[1])),
        converged=np.empty(len(total), dtype=np.bool_),
        steps=np.empty(len(total), dtype=np.intp),
    )
    task, here, steps = whole, np.arange(len(total)), 0
    while len(here):
        state, ended, best = _step(task, state)
        if steps == _MAX_STEPS:
            ended[:] = True
        if ended.any():
            gone = here[ended]
            found.coefficients[gone] = state.theta[ended]
            found.odds[gone] = state.odds[ended]
            found.chance[gone] = state.chance[ended]
            found.converged[gone] = best[ended]
            found.steps[gone] = steps
            here, task, state = here[~ended], task.take(~ended), state.take(~ended)
        steps += 1
    found.information[...] = _derivatives(whole, found.coefficients, found.chance)[1]
    return found


def log_loss(odds: Floats, weight: Floats, positive: Floats) -> Floats:
    """[G] Σ w·log loss, in nats, of cells [G, M] with these log-odds."""
    return np.asarray((weight * np.logaddexp(0.0, odds) - positive * odds).sum(axis=1))


@dataclass(frozen=True, eq=False, slots=True)
class _Task:
    """Arguments of the fits that have not ended, and [G] Σw."""

    features: Floats
    weight: Floats
    positive: Floats
    ridge: Floats
    center: Floats
    total: Floats

    def take(self, chosen: Booleans) -> _Task:
        return _Task(
            self.features[chosen],
            self.weight[chosen],
            self.positive[chosen],
            self.ridge[chosen],
            self.center[chosen],
            self.total[chosen],
        )


@dataclass(frozen=True, eq=False, slots=True)
class _State:
    """Where they are: θ, η and σ(η)."""

    theta: Floats
    odds: Floats
    chance: Floats

    @classmethod
    def at(cls, task: _Task, theta: Floats) -> _State:
        odds = _odds(task.features, theta)
        return cls(theta, odds, _sigmoid(odds))

    def take(self, chosen: Booleans) -> _State:
        return _State(self.theta[chosen], self.odds[chosen], self.chance[chosen])


def _started(task: _Task, theta: Floats) -> _State:
    """At θ, or at 0, where curvature is largest, if at θ there is none left."""
    state = _State.at(task, theta)
    curvature = (task.weight * state.chance * (1.0 - state.chance)).sum(axis=1)
    flat = curvature < _FLAT_START * task.total
    return _State.at(task, np.where(flat[:, None], 0.0, theta)) if flat.any() else state


def _step(task: _Task, state: _State) -> tuple[_State, Booleans, Booleans]:
    """The next state, which fits end there, and which of them at an optimum."""
    gradient, hessian = _derivatives(task, state.theta, state.chance)
    direction = _solve(hessian, gradient)
    change = _odds(task.features, direction)
    decrement = (gradient * direction).sum(axis=1)
    stays = decrement <= _SEPARATED_GAIN * task.total
    if stays.any():
        stays &= _runs_away(task.weight, state.odds, change)
    # The last, tiny step costs nothing and squares the error once more.
    last = (decrement <= _GAIN_PER_WEIGHT * task.total) & ~stays
    size = np.where(stays, 0.0, 1.0)
    wide = (np.abs(change).max(axis=1, initial=0.0) > _SAFE_STEP) & ~last & ~stays
    if wide.any():
        size[wide] = _improving_sizes(
            task.take(wide), state.take(wide), change[wide], direction[wide]
        )
    moved = _State.at(task, state.theta - size[:, None] * direction)
    best = (last | (size == 0.0)) & ~stays
    return moved, stays | best, best


def _runs_away(weight: Floats, odds: Floats, change: Floats) -> Booleans:
    """[G] whether log-odds of some cell still grow, among those that are not saturated already."""
    alive = (np.abs(odds) < _SATURATED_ODDS) & (weight > 0.0)
    return np.asarray((alive & (np.abs(change) > _SEPARATED_STEP)).any(axis=1))


def _improving_sizes(
    task: _Task,
    state: _State,
    change: Floats,  # [G, M] of the odds by a full step
    direction: Floats,  # [G, P] the full step
) -> Floats:
    """[G] largest of 1, ½, ¼, … that lowers the objective; 0 where none does beyond rounding."""
    start = _objective(task, state.odds, state.theta)
    size = np.ones(len(start))
    worse = np.ones(len(start), dtype=np.bool_)
    for _ in range(_MAX_HALVINGS):
        by = size[:, None]
        tried = _objective(task, state.odds - by * change, state.theta - by * direction)
        worse &= ~(tried < start)
        if not worse.any():
            return size
        size[worse] *= 0.5
    size[worse] = 0.0
    return size


def _objective(task: _Task, odds: Floats, theta: Floats) -> Floats:
    shift = theta - task.center
    with np.errstate(over="ignore", invalid="ignore"):  # a wild trial step: it is not taken
        penalty = 0.5 * (task.ridge * shift * shift).sum(axis=1)
        return np.asarray(log_loss(odds, task.weight, task.positive) + penalty)


def _odds(features: Floats, theta: Floats) -> Floats:
    return np.asarray((theta[:, None, :] @ features)[:, 0])


def _sigmoid(odds: Floats) -> Floats:
    with np.errstate(over="ignore"):  # infinity gives the right 0
        value = np.exp(-odds)
    value += 1.0
    return np.reciprocal(value, out=value)


def _derivatives(task: _Task, theta: Floats, chance: Floats) -> tuple[Floats, Floats]:
    """[G, P] gradient and [G, P, P] Hessian of the objective."""
    expected = task.weight * chance
    gradient = (task.features @ (expected - task.positive)[..., None])[..., 0]
    curvature = expected * (1.0 - chance)
    hessian = (task.features * curvature[:, None]) @ task.features.transpose(0, 2, 1)
    diagonal = np.einsum("gpp->gp", hessian)  # a view
    diagonal += task.ridge
    return gradient + task.ridge * (theta - task.center), hessian


def _solve(hessian: Floats, gradient: Floats) -> Floats:
    """The Newton directions; the shortest ones where the Hessian is singular."""
    if gradient.shape[1] == 1:  # the calls below cost more than all the rest of a step
        return np.divide(
            gradient, hessian[..., 0], out=np.zeros_like(gradient), where=hessian[..., 0] > 0.0
        )
    # Equal scales first, so that "singular" means collinear and not merely small.
    scale = np.sqrt(np.diagonal(hessian, axis1=1, axis2=2))
    scale = np.where(scale > 0.0, scale, 1.0)
    alike = hessian / (scale[:, :, None] * scale[:, None, :])
    right = gradient / scale
    regular = np.linalg.det(alike) > _COLLINEAR
    if regular.all():
        return np.asarray(np.linalg.solve(alike, right[..., None])[..., 0] / scale)
    solution = np.empty_like(right)
    solution[regular] = np.linalg.solve(alike[regular], right[regular][..., None])[..., 0]
    for index in np.flatnonzero(~regular):
        solution[index] = np.linalg.lstsq(alike[index], right[index], rcond=_COLLINEAR)[0]
    return np.asarray(solution / scale)
