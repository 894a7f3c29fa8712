"""Which blocks are verified to the end whatever their confidence, decided before they are drafted.

Deep positions are seen seldom where the scheduler trims. Two sources of full blocks:

* *harvest*: where the load alone leaves room, by the cost table, every block of the step is
  verified fully; it is all but free, and its propensity is 1;
* *coins*: elsewhere a request explores with probability ε, so small that the expected loss of
  throughput stays within a stated share. Its propensity is ε.

Both look at the number of requests, the cost table and a counter-based stream, never at logits or
tokens, and are decided before drafting: what is verified then depends on nothing that a drafted
token reveals, and verification stays lossless (paper, Appendix A). Propensities are for audits,
never for fits.

Letters: R requests of a step, γ positions, B verified tokens, ℓ verified length.

>>> from calib.cost_table_shapes import analytic_cost_table
>>> policy = ExplorationPolicy(analytic_cost_table("smooth", max_batch_tokens=4096), gamma=7)
>>> policy.decide("engine-1", step=3, requests=["a", "b"]).harvest
True
>>> policy.decide("engine-1", step=3, requests=range(128)).harvest
False
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from calib.calibration_values import checked_gamma
from calib.cost_table import CostTable
from calib.counter_random import place_uniforms
from calib.errors import ConfigurationError, ScheduleError
from calib.regret import SurvivalSource, ThroughputReplay

__all__ = [
    "DEFAULT_BUDGET",
    "LARGEST_RATE",
    "WARN_BUDGET",
    "ExplorationPolicy",
    "ExplorationStep",
    "exploration_loss",
]

Floats = NDArray[np.float64]

# All of calibration is worth about 1 % of throughput, so a fixed 5 % of coins loses money.
DEFAULT_BUDGET = 0.001
WARN_BUDGET = 0.005
LARGEST_RATE = 0.05

_TAIL = 1e-9  # coins beyond this are counted as losing everything
_BISECTIONS = 20  # to a millionth of the largest rate, and never above the budget


@dataclass(frozen=True, eq=False, slots=True)
class ExplorationStep:
    """What one step explores.

    Attributes:
        harvest: whether the load alone verifies everything.
        rate: ε of this step's coins; 0 where it harvests.
        explored: [R] requests whose coin said full verification; False where it harvests.
        propensity: [R] probability, before drafting, that ℓ = γ was decided: 1, or ε.
    """

    harvest: bool
    rate: float
    explored: NDArray[np.bool_]
    propensity: NDArray[np.float32]

    def lengths(self, scheduled: ArrayLike, gamma: int) -> NDArray[np.int64]:
        """ℓ of each request: γ where explored or harvested, the scheduler's elsewhere.

        Raises:
            ScheduleError: lengths of other requests, or outside 0..γ.
        """
        given = np.asarray(scheduled)
        if given.shape != self.explored.shape or given.dtype.kind not in "iu":
            shown = (given.dtype.name, given.shape)
            raise ScheduleError("scheduled", shown, f"give {len(self.explored)} whole numbers")
        if given.size and (given.min() < 0 or given.max() > gamma):
            raise ScheduleError("scheduled", given.tolist(), f"give lengths in 0..{gamma}")
        return np.where(self.explored | self.harvest, gamma, given).astype(np.int64)


@dataclass(frozen=True)
class ExplorationPolicy:
    """When to harvest, and how often to pay.

    Attributes:
        cost: step curve of the engine.
        gamma: draft positions.
        budget: largest expected loss of throughput by coins, a share of every step.
        free: loss of throughput below which full verification counts as free.
        largest_rate: ε never exceeds it, however cheap the cost table calls it.
        seed: of the coins; replicas that share it agree.

    Raises:
        ConfigurationError: shares outside [0, 1).
    """

    cost: CostTable
    gamma: int
    budget: float = DEFAULT_BUDGET
    free: float = DEFAULT_BUDGET
    largest_rate: float = LARGEST_RATE
    seed: int = 0

    def __post_init__(self) -> None:
        checked_gamma(self.gamma)
        for name in ("budget", "free", "largest_rate"):
            value = getattr(self, name)
            if isinstance(value, bool) or not 0.0 <= value < 1.0:
                raise ConfigurationError(name, value, "give a share in [0, 1)")

    def warned(self) -> ExplorationPolicy:
        """The policy while a warning is open: at least the larger budget."""
        return replace(self, budget=max(self.budget, WARN_BUDGET))

    def harvests(self, requests: int) -> bool:
        """Whether verifying everything costs less than ``free`` at this load, whatever is drafted.

        Full verification accepts the most tokens, so Θ loses at most 1 − t(B) / t(R(1 + γ)) against
        a schedule of B tokens.
        """
        known = self._harvests.get(requests)
        if known is None:
            seconds = self._seconds(requests)
            known = requests > 0 and bool(1.0 - seconds.min() / seconds[-1] <= self.free)
            self._harvests[requests] = known
        return known

    def rate(self, requests: int) -> float:
        """ε of a step with R requests: the largest whose expected loss stays within the budget.

        The loss is bounded for every schedule the step might get: coins add at most γ tokens each
        and take none away, so Θ keeps at least E[t(B) / t(B + γX)], X ~ Binomial(R, ε).
        Searched once per R, in some milliseconds: ask for the usual loads before serving.
        """
        known = self._rates.get(requests)
        if known is None:
            known = self._rates[requests] = self._searched(requests)
        return known

    def decide(self, engine: str, step: int, requests: Sequence[str | int]) -> ExplorationStep:
        """Throw the coins of a step, before its blocks are drafted.

        Args:
            engine: name of the engine; all its ranks decide alike.
            step: decode step, 0 or more.
            requests: names or numbers of the requests of the step.
        """
        count = len(requests)
        none = np.zeros(count, dtype=np.bool_)
        if self.harvests(count):
            return ExplorationStep(True, 0.0, none, np.ones(count, dtype=np.float32))
        rate = self.rate(count)
        explored = none
        if rate > 0.0:
            explored = place_uniforms(self.seed, engine, step, requests) < rate
        return ExplorationStep(False, rate, explored, np.full(count, rate, dtype=np.float32))

    @cached_property
    def _rates(self) -> dict[int, float]:
        return {}

    @cached_property
    def _harvests(self) -> dict[int, bool]:
        return {}

    def _seconds(self, requests: int) -> Floats:
        """Step times at B = R … R(1 + γ)."""
        tokens = np.arange(requests, requests * (1 + self.gamma) + 1)
        return self.cost.step_seconds(tokens, requests)

    def _searched(self, requests: int) -> float:
        if requests < 1 or self.budget == 0.0 or self.largest_rate == 0.0:
            return 0.0
        # More coins than this come up less than once in 1 / _TAIL steps.
        most = int(binom.isf(_TAIL, requests, self.largest_rate)) + 1
        kept = self._kept(requests, min(most, requests))
        if self._expected_loss(kept, requests, self.largest_rate) <= self.budget:
            return self.largest_rate
        low, high = 0.0, self.largest_rate
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            if self._expected_loss(kept, requests, middle) <= self.budget:
                low = middle
            else:
                high = middle
        return low

    def _kept(self, requests: int, most: int) -> Floats:
        """[coins 0 … most, B] least share of Θ that is kept when so many requests explore."""
        seconds = self._seconds(requests)
        length = len(seconds)
        padded = np.concatenate([seconds, np.full(self.gamma * (most + 1), -np.inf)])
        windows = np.lib.stride_tricks.sliding_window_view(padded[1:], self.gamma).max(axis=1)
        slowest = seconds.copy()
        kept = [np.ones(length)]
        for coin in range(most):
            slowest = np.maximum(slowest, windows[self.gamma * coin :][:length])
            kept.append(seconds / slowest)
        return np.stack(kept)

    def _expected_loss(self, kept: Floats, requests: int, rate: float) -> float:
        """The largest expected loss over all schedules; coins beyond the table lose everything."""
        chance = binom.pmf(np.arange(len(kept)), requests, rate)
        return float((1.0 - chance @ kept).max())


def exploration_loss(
    replay: ThroughputReplay,
    survival: ArrayLike | SurvivalSource,
    rate: float,
    *,
    repeats: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """Share of Θ that coins at ``rate`` would have cost on a log: what the budget really buys.

    Args:
        replay: the log, prepared for replay.
        survival: what its steps are scheduled with.
        rate: ε.
        repeats: independent sets of coins.
        seed: of the coins.

    Returns:
        ``loss``, ``standard_error`` over the repeats (None for one), and ``full_rows``, the share
        of rows the coins chose.

    Raises:
        ConfigurationError: a rate outside [0, 1] or fewer than 1 repeat.
    """
    if not 0.0 <= rate <= 1.0:
        raise ConfigurationError("rate", rate, "give a probability")
    if repeats < 1:
        raise ConfigurationError("repeats", repeats, "give at least 1")
    draw = np.random.default_rng(seed)
    plain = replay.theta(survival).theta
    losses, shares = [], []
    for _ in range(repeats):
        coins = draw.random(len(replay.records)) < rate
        losses.append(1.0 - replay.theta(survival, explored=coins).theta / plain)
        shares.append(float(coins[replay.steps.rows].mean()))
    error = float(np.std(losses, ddof=1) / np.sqrt(repeats)) if repeats > 1 else None
    return {
        "loss": float(np.mean(losses)),
        "standard_error": error,
        "full_rows": float(np.mean(shares)),
    }
