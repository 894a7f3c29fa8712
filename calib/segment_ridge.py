"""Slopes and intercepts of many segments at once, shrunk in two levels towards their parents.

A segment s has the parent's log-odds plus an effect that its positions share and a residual of each
position,

    η = (a_k + e_1 + r_{k,1})·z + (b_k + e_2 + r_{k,2}),

and minimises Σ log loss + ½ λ₁ |e|² + ½ λ₂ Σ_k |r_k|². A segment with few rows stays at its parent,
one with many leaves it, and nothing switches in between. λ = ∞ takes the level out. The objective
is convex; Newton steps eliminate the residuals, so a step costs one 2 x 2 system per position.

Letters: G segments, γ positions, M cells of a position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

__all__ = ["CellStack", "RidgeFit", "Strengths", "fit_deviations", "stack_loss"]

Floats = NDArray[np.float64]

_MAX_STEPS = 60
_MAX_HALVINGS = 30
_GAIN = 1e-10  # half the Newton decrement per row that changes no published digit


@dataclass(frozen=True, slots=True, order=True)
class Strengths:
    """How strongly segments are pulled to their parents, in rows; infinity forbids the level.

    Attributes:
        shared: λ₁ of the effect that all positions share.
        residual: λ₂ of what single positions add.
    """

    shared: float
    residual: float


@dataclass(frozen=True, eq=False, slots=True)
class CellStack:
    """Weighted cells of G segments.

    Attributes:
        logit: [G, γ, M] mean logit of a cell, in the units slopes are pulled in.
        weight: [G, γ, M] Σw.
        positive: [G, γ, M] Σwy.
    """

    logit: Floats
    weight: Floats
    positive: Floats

    def take(self, index: NDArray[np.intp]) -> CellStack:
        """The given segments."""
        return CellStack(self.logit[index], self.weight[index], self.positive[index])


@dataclass(frozen=True, eq=False, slots=True)
class RidgeFit:
    """Fitted segments.

    Attributes:
        slopes: [G, γ].
        intercepts: [G, γ].
        shared: [G, 2] e: what a segment adds to slope and intercept of every position.
    """

    slopes: Floats
    intercepts: Floats
    shared: Floats


def stack_loss(cells: CellStack, slopes: Floats, intercepts: Floats) -> Floats:
    """[G] log loss in nats of the cells, under slopes and intercepts [G, γ]."""
    odds = slopes[..., None] * cells.logit + intercepts[..., None]
    loss = cells.weight * np.logaddexp(0.0, odds) - cells.positive * odds
    return np.asarray(loss.sum(axis=(1, 2)))


def fit_deviations(
    cells: CellStack,
    slopes: Floats,  # [G, γ] of the parents
    intercepts: Floats,  # [G, γ] of the parents
    strengths: Strengths,
) -> RidgeFit:
    """Fit every segment around its parent; segments do not see each other.

    Args:
        cells: what the segments observed.
        slopes: where each segment is pulled to.
        intercepts: likewise.
        strengths: λ₁ and λ₂, positive.
    """
    count, gamma = slopes.shape
    parent = np.stack([slopes, intercepts], axis=-1)
    state = _State(np.zeros((count, gamma, 2)), np.zeros((count, 2)))
    value = _objective(cells, parent, state, strengths)
    rows = np.maximum(cells.weight.sum(axis=(1, 2)), 1.0)
    active = np.arange(count)
    for _ in range(_MAX_STEPS):
        part = cells.take(active)
        here = _State(state.each[active], state.shared[active])
        step, decrement = _newton_step(part, parent[active], here, strengths)
        moving = decrement > _GAIN * rows[active]
        if not moving.any():
            break
        active, step, here = active[moving], step.take(moving), here.take(moving)
        part = part.take(np.flatnonzero(moving))
        size = np.ones(len(active))
        for _ in range(_MAX_HALVINGS):
            trial = here.moved(step, size)
            found = _objective(part, parent[active], trial, strengths)
            worse = found > value[active]
            if not worse.any():
                break
            size[worse] *= 0.5
        size[found > value[active]] = 0.0  # rounding: as good as it gets
        trial = here.moved(step, size)
        state.each[active], state.shared[active] = trial.each, trial.shared
        value[active] = np.minimum(found, value[active])
        active = active[size > 0.0]
        if not len(active):
            break
    return RidgeFit(slopes + state.each[..., 0], intercepts + state.each[..., 1], state.shared)


@dataclass(frozen=True, eq=False, slots=True)
class _State:
    """Deviations from the parent, or a step of them.

    Attributes:
        each: [G, γ, 2] e + r_k.
        shared: [G, 2] e.
    """

    each: Floats
    shared: Floats

    def take(self, index: NDArray[np.bool_]) -> _State:
        return _State(self.each[index], self.shared[index])

    def moved(self, step: _State, size: Floats) -> _State:
        return _State(
            self.each + size[:, None, None] * step.each, self.shared + size[:, None] * step.shared
        )


def _objective(cells: CellStack, parent: Floats, state: _State, strengths: Strengths) -> Floats:
    theta = parent + state.each
    value = stack_loss(cells, theta[..., 0], theta[..., 1])
    residual = state.each - state.shared[:, None, :]
    if np.isfinite(strengths.shared):
        value = value + 0.5 * strengths.shared * np.square(state.shared).sum(axis=1)
    if np.isfinite(strengths.residual):
        value = value + 0.5 * strengths.residual * np.square(residual).sum(axis=(1, 2))
    return np.asarray(value)


def _newton_step(
    cells: CellStack, parent: Floats, state: _State, strengths: Strengths
) -> tuple[_State, Floats]:
    """The full step, and [G] half the Newton decrement: what is left to gain."""
    gradient, hessian = _derivatives(cells, parent + state.each)
    residual = state.each - state.shared[:, None, :]
    # W = (I + H/λ₂)⁻¹ is finite for every λ₂ up to infinity, and so are all terms below.
    relax = np.linalg.inv(np.eye(2) + hessian / strengths.residual)
    pull = np.einsum("gkij,gkjl,gkl->gi", relax, hessian, residual)
    pull -= np.einsum("gkij,gkj->gi", relax, gradient)
    matrix = np.eye(2) + np.einsum("gkij,gkjl->gil", relax, hessian) / strengths.shared
    right = pull / strengths.shared - state.shared
    shared = np.linalg.solve(matrix, right[..., None])[..., 0]
    wanted = shared[:, None, :] - gradient / strengths.residual - residual
    each = np.einsum("gkij,gkj->gki", relax, wanted)
    slope = np.einsum("gki,gki->g", gradient, each)
    if np.isfinite(strengths.residual):
        change = each - shared[:, None, :]
        slope += strengths.residual * np.einsum("gki,gki->g", residual, change)
    if np.isfinite(strengths.shared):
        slope += strengths.shared * np.einsum("gi,gi->g", state.shared, shared)
    return _State(each, shared), -0.5 * slope


def _derivatives(cells: CellStack, theta: Floats) -> tuple[Floats, Floats]:
    """[G, γ, 2] gradient and [G, γ, 2, 2] Hessian of the log loss."""
    chance = expit(theta[..., 0, None] * cells.logit + theta[..., 1, None])
    error = cells.weight * chance - cells.positive
    curvature = cells.weight * chance * (1.0 - chance)
    bent = curvature * cells.logit
    gradient = np.stack([(error * cells.logit).sum(axis=-1), error.sum(axis=-1)], axis=-1)
    cross = bent.sum(axis=-1)
    hessian = np.empty((*cross.shape, 2, 2))
    hessian[..., 0, 0] = (bent * cells.logit).sum(axis=-1)
    hessian[..., 0, 1] = hessian[..., 1, 0] = cross
    hessian[..., 1, 1] = curvature.sum(axis=-1)
    return gradient, hessian
