"""The prefix scheduler over all steps of a log at once.

Same rules and same arithmetic as :mod:`calib.prefix_scheduler`, so the same lengths to the last
tie; steps of one size are sorted and searched together, which makes a replay of thousands of small
steps cheap.

Letters: S steps, R requests of a step, γ positions, M rows of all steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from calib.cost_table import CostTable
from calib.errors import ConfigurationError
from calib.replay_steps import ReplaySteps

__all__ = ["LAG_STEPS", "Policy", "schedule_steps", "step_seconds"]

Floats = NDArray[np.float64]
Lengths = NDArray[np.int64]

Policy = Literal["early_stop", "lagged", "unconstrained"]

LAG_STEPS = 2  # age of the survivals that decide the capacity (paper §5.2)
_LARGEST_GROUP = 1 << 20  # scores sorted at once: bounds the memory of a replay


@dataclass(frozen=True, eq=False, slots=True)
class _Ranking:
    """Candidates of S steps of one size, best first.

    Attributes:
        order: [S, Rγ] position-major indices k·R + r.
        candidates: [S] how many of them have a survival above 0.
        theta: [S, Rγ + 1] Θ after 0, 1, … candidates; -∞ beyond them.
    """

    order: NDArray[np.intp]
    candidates: NDArray[np.intp]
    theta: Floats


def schedule_steps(
    survival: Floats,  # [M, γ] S in [0, 1], step by step
    steps: ReplaySteps,
    cost: CostTable,
    policy: Policy = "early_stop",
) -> Lengths:
    """ℓ of every row, [M] in 0..γ.

    Args:
        survival: forecast survival; need not fall along a block.
        steps: how the rows belong together.
        cost: step curve.
        policy: ``"early_stop"`` is Algorithm 1. ``"lagged"`` takes the capacity from the
            survivals of the same requests two steps before (ones for requests that are new) and
            ranks by the current ones. ``"unconstrained"`` searches all capacities on the current
            survivals: it anticipates, so no engine may run it where drafts are sampled (paper,
            Appendix A), and is here to show what the other two leave on the table.

    Raises:
        ConfigurationError: another policy.
    """
    if policy not in get_args(Policy):
        raise ConfigurationError("policy", policy, f"give one of {get_args(Policy)}")
    older = _lagged(survival, steps) if policy == "lagged" else survival
    lengths = np.zeros(len(survival), dtype=np.int64)
    for rows in _groups(steps, survival.shape[1]):
        ranking = _ranked(survival[rows], cost)
        if policy == "lagged":
            admitted = np.argmax(_ranked(older[rows], cost).theta, axis=1)
        elif policy == "unconstrained":
            admitted = np.argmax(ranking.theta, axis=1)
        else:
            stalled = ranking.theta[:, 1:] <= ranking.theta[:, :-1]
            none = ~stalled.any(axis=1)
            admitted = np.where(none, stalled.shape[1], np.argmax(stalled, axis=1))
        lengths[rows] = _prefix_lengths(ranking, admitted, rows.shape[1])
    return lengths


def step_seconds(lengths: Lengths, steps: ReplaySteps, cost: CostTable) -> tuple[Floats, Lengths]:
    """Seconds and verified tokens B of every step, both [S].

    Args:
        lengths: [M] ℓ of every row.
        steps: how the rows belong together.
        cost: step curve.
    """
    sizes = steps.sizes
    tokens = sizes + np.add.reduceat(lengths, steps.starts[:-1])
    seconds = np.empty(steps.steps)
    for size in np.unique(sizes):
        chosen = sizes == size
        seconds[chosen] = cost.step_seconds(tokens[chosen], int(size))
    return seconds, tokens


def _groups(steps: ReplaySteps, gamma: int) -> list[NDArray[np.intp]]:
    """Rows [S', R] of steps of one size, few enough to sort together."""
    groups = []
    for size in np.unique(steps.sizes):
        first = steps.starts[:-1][steps.sizes == size]
        rows = first[:, None] + np.arange(size)
        most = max(1, _LARGEST_GROUP // (int(size) * gamma))
        groups += [rows[start : start + most] for start in range(0, len(rows), most)]
    return groups


def _ranked(survival: Floats, cost: CostTable) -> _Ranking:
    """Candidates of steps of one size, [S, R, γ] survivals."""
    count, requests, gamma = survival.shape
    values = survival.transpose(0, 2, 1)
    scores = np.minimum.accumulate(values, axis=1).reshape(count, gamma * requests)
    order = np.argsort(-scores, axis=1, kind="stable")
    gains = np.take_along_axis(values.reshape(count, gamma * requests), order, axis=1)
    gains = np.concatenate([np.zeros((count, 1)), gains], axis=1)
    tokens = requests + np.arange(gains.shape[1])
    theta = cost.throughput(requests + np.cumsum(gains, axis=1), tokens, requests)
    candidates = (scores > 0.0).sum(axis=1)
    theta[np.arange(gains.shape[1]) > candidates[:, None]] = -np.inf
    return _Ranking(order, candidates, theta)


def _prefix_lengths(ranking: _Ranking, admitted: NDArray[np.intp], requests: int) -> Lengths:
    """How many candidates each request got, [S, R]."""
    count, width = ranking.order.shape
    taken = np.arange(width) < np.minimum(admitted, ranking.candidates)[:, None]
    owner = ranking.order % requests + requests * np.arange(count)[:, None]
    counted = np.bincount(owner[taken], minlength=count * requests)
    return counted.reshape(count, requests).astype(np.int64)


def _lagged(survival: Floats, steps: ReplaySteps) -> Floats:
    """[M, γ] survivals of the same request two steps before, in the same engine; ones without."""
    step = steps.step_of_row
    before = step - LAG_STEPS
    same_stream = steps.streams[np.maximum(before, 0)] == steps.streams[step]
    width = int(steps.slots.max(initial=0)) + 1
    key = step * width + steps.slots
    order = np.argsort(key, kind="stable")
    wanted = before * width + steps.slots
    place = np.minimum(np.searchsorted(key[order], wanted), len(order) - 1)
    found = (before >= 0) & same_stream & (key[order][place] == wanted)
    older = np.ones_like(survival)
    older[found] = survival[order[place[found]]]
    return older
