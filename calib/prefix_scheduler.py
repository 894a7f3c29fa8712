"""Which drafted tokens a step verifies (paper §3.2.2, Algorithm 1, and §5.2).

Letters: R requests, γ positions; S[r, k] is the survival of request r's position k, ℓ_r the
number of its drafted tokens that are verified, B = Σ_r (1 + ℓ_r), τ = Σ_r (1 + Σ_{k≤ℓ_r} S[r, k])
and Θ = τ · SPS(B).

Candidates are ranked by m[r, k] = min_{i≤k} S[r, i]: a survival model may rise along a block, and
ranking on a rising score lets token k + 1 decide about token k, which is not lossless. τ is
forecast with S itself. Ties: score descending, position ascending, request ascending, so that
every rank of an engine decides alike and what is verified is always a prefix.

Whether position k is verified may depend on nothing that token k or a later token of its block
reveals (paper Appendix A). That holds for

* :func:`schedule_early_stop`, which stops at the first token that does not raise Θ;
* :func:`schedule_lagged`, whose capacity comes from survivals two steps old;
* :func:`schedule_fixed` and :func:`schedule_threshold`.

It does not hold for :func:`schedule_unconstrained`, which searches all capacities on the current
step's survivals; its schedules say so, and rows of such steps are marked ``anticipating`` in
telemetry.

>>> import numpy as np
>>> from calib.cost_table import FlatCostTable
>>> steps = FlatCostTable((1, 2, 3), (1.0, 0.5, 0.45), 3)
>>> schedule_early_stop(np.array([[0.8, 0.72]]), steps).verified.tolist()
[0]
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.cost_table import CostTable
from calib.errors import ScheduleError

# SGLang's survival_eps, as float32 because the engine compares float32: less likely tokens are no
# candidates.
ENGINE_SURVIVAL_FLOOR = float(np.float32(1e-6))


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """What one step verifies.

    Attributes:
        verified: ℓ of each request, [R] int64 in 0..γ, anchors not counted.
        tau: expected accepted tokens, bonus included; None where no survival was given.
        theta: τ · SPS(B), tokens per second; None where no survival was given.
        anticipating: whether later tokens of a block could decide about earlier ones; not lossless
            where drafts are sampled, and telemetry of such steps leaves fits and monitors.
    """

    verified: NDArray[np.int64]
    tau: float | None = None
    theta: float | None = None
    anticipating: bool = False

    @property
    def budget(self) -> int:
        """Drafted tokens verified, Σ ℓ."""
        return int(self.verified.sum())

    @property
    def batch_tokens(self) -> int:
        """B = Σ (1 + ℓ), anchors counted."""
        return self.budget + len(self.verified)


@dataclass(frozen=True, slots=True)
class VerifyLengthLimits:
    """SGLang's bounds on the verified length, in its own count that includes the anchor.

    A request that the ranking gave s tokens gets verify_len = minimum + s, held within
    [max(minimum, 1), maximum], and ℓ = verify_len − 1. Only the first ``maximum`` positions are
    candidates.

    Attributes:
        minimum: 0 to ``maximum``; SGLang's default 1 is the anchor alone.
        maximum: up to γ + 1; None is γ + 1.
    """

    minimum: int = 1
    maximum: int | None = None

    def resolve(self, gamma: int) -> int:
        """The maximum for blocks of γ tokens, checked.

        Raises:
            ScheduleError: 0 ≤ minimum ≤ maximum ≤ γ + 1 does not hold.
        """
        maximum = gamma + 1 if self.maximum is None else self.maximum
        if not 0 <= self.minimum <= maximum <= gamma + 1 or maximum < 1:
            remedy = f"keep 0 <= minimum <= maximum <= gamma + 1 = {gamma + 1}, maximum >= 1"
            raise ScheduleError("limits", (self.minimum, maximum), remedy)
        return maximum


NO_LIMITS = VerifyLengthLimits()


def schedule_early_stop(
    survival: ArrayLike,  # [R, γ]
    cost: CostTable,
) -> Schedule:
    """Algorithm 1: admit tokens by rank while each one raises Θ.

    Finds the best schedule when Θ along the ranking has one peak (smooth step curves).

    Args:
        survival: S in [0, 1]; tokens of rank score 0 are no candidates.
        cost: step curve.

    Raises:
        ScheduleError: survivals that are no finite [R, γ] array in [0, 1].
    """
    values = _survival(survival)
    order, _ = _ranking(_rank_scores(values), 0.0)
    theta = _theta_path(values, order, cost)
    stalled = np.flatnonzero(theta[1:] <= theta[:-1])
    admitted = int(stalled[0]) if stalled.size else len(order)
    return forecast(_prefix_lengths(order[:admitted], len(values)), values, cost)


def capacity_unconstrained(
    survival_lagged: ArrayLike,  # [R, γ] of an earlier step
    cost: CostTable,
    *,
    survival_floor: float = 0.0,
    limits: VerifyLengthLimits = NO_LIMITS,
    largest: int | None = None,
) -> int:
    """Capacity K: how many drafted tokens would maximise Θ, over all of 0..R·γ (paper §5.2).

    A global search, so that it crosses the cliffs of a jagged step curve. Only safe on survivals
    of an earlier step. The smallest K wins a tie.

    Args:
        survival_lagged: S in [0, 1]; ones for requests that are new, as the engines do.
        cost: step curve.
        survival_floor: tokens whose rank score is below it are no candidates.
        limits: only the first ``limits.maximum`` positions are candidates.
        largest: K never exceeds it, as vLLM's does what its sampler can hold; None is no cap.

    Raises:
        ScheduleError: survivals that are no finite [R, γ] array in [0, 1], wrong limits, or a
            negative cap.
    """
    if largest is not None and largest < 0:
        raise ScheduleError("largest", largest, "give 0 or more tokens")
    values = _survival(survival_lagged)
    window = values[:, : limits.resolve(values.shape[1])]
    order = _ranking(_rank_scores(window), survival_floor)[0][:largest]
    return int(np.argmax(_theta_path(window, order, cost)))


def allocate(
    survival: ArrayLike,  # [R, γ] of the current step
    capacity: int,
    *,
    survival_floor: float = 0.0,
    limits: VerifyLengthLimits = NO_LIMITS,
) -> NDArray[np.int64]:
    """Give ``capacity`` drafted tokens to the best-ranked candidates; ℓ, [R] int64.

    Args:
        survival: S in [0, 1].
        capacity: K ≥ 0; what exceeds the candidates is left unused.
        survival_floor: tokens whose rank score is below it are no candidates.
        limits: SGLang's bounds on the verified length, applied after the ranking.

    Raises:
        ScheduleError: survivals that are no finite [R, γ] array in [0, 1], a negative capacity,
            or wrong limits.
    """
    values = _survival(survival)
    if capacity < 0:
        raise ScheduleError("capacity", capacity, "give 0 or more tokens")
    maximum = limits.resolve(values.shape[1])
    order, requests = _ranking(_rank_scores(values[:, :maximum]), survival_floor)
    selected = _prefix_lengths(order[:capacity], requests)
    length = np.clip(limits.minimum + selected, max(limits.minimum, 1), maximum) - 1
    return length.astype(np.int64)


def schedule_lagged(
    survival: ArrayLike,  # [R, γ] of the current step
    survival_lagged: ArrayLike,  # [R, γ] two steps old
    cost: CostTable,
    *,
    survival_floor: float = 0.0,
    limits: VerifyLengthLimits = NO_LIMITS,
) -> Schedule:
    """The deployed variant: capacity from old survivals, current survivals only rank (§5.2).

    τ and Θ of the result are forecast with the current survivals.

    Raises:
        ScheduleError: as :func:`capacity_unconstrained` and :func:`allocate`.
    """
    capacity = capacity_unconstrained(
        survival_lagged, cost, survival_floor=survival_floor, limits=limits
    )
    verified = allocate(survival, capacity, survival_floor=survival_floor, limits=limits)
    return forecast(verified, survival, cost)


def schedule_unconstrained(
    survival: ArrayLike,  # [R, γ] of the current step
    cost: CostTable,
    *,
    survival_floor: float = 0.0,
    limits: VerifyLengthLimits = NO_LIMITS,
) -> Schedule:
    """The best schedule of a step by global search, whatever its step curve: anticipating.

    The ceiling that the two lossless policies are compared with; right for engines only where
    confidences do not see sampled tokens, as with greedy drafts.

    Raises:
        ScheduleError: as :func:`capacity_unconstrained` and :func:`allocate`.
    """
    found = schedule_lagged(survival, survival, cost, survival_floor=survival_floor, limits=limits)
    return replace(found, anticipating=True)


def schedule_fixed(requests: int, gamma: int, length: int) -> Schedule:
    """The same ℓ for every request.

    Raises:
        ScheduleError: a negative count, or ℓ outside 0..γ.
    """
    if requests < 0 or gamma < 1:
        raise ScheduleError("requests, gamma", (requests, gamma), "give R >= 0 and gamma >= 1")
    if not 0 <= length <= gamma:
        raise ScheduleError("length", length, f"give a length in 0..{gamma}")
    return Schedule(np.full(requests, length, dtype=np.int64))


def schedule_threshold(
    values: ArrayLike,  # [R, γ] conditional confidences or survivals
    threshold: float,
) -> Schedule:
    """Cut each block at its first position below the threshold.

    Args:
        values: confidence or survival in [0, 1].
        threshold: a position stays while its value is at least this.

    Raises:
        ScheduleError: values that are no finite [R, γ] array in [0, 1], or a threshold that is
            not finite.
    """
    if not np.isfinite(threshold):
        raise ScheduleError("threshold", threshold, "give a finite number")
    stays = np.logical_and.accumulate(_survival(values) >= threshold, axis=1)
    return Schedule(stays.sum(axis=1, dtype=np.int64))


def forecast(
    verified: ArrayLike,  # [R] ℓ
    survival: ArrayLike,  # [R, γ]
    cost: CostTable,
) -> Schedule:
    """A schedule with its expected accepted tokens τ and throughput Θ.

    Raises:
        ScheduleError: ℓ that are no whole numbers in 0..γ, one per request, or survivals that
            are no finite [R, γ] array in [0, 1].
    """
    values = _survival(survival)
    requests, gamma = values.shape
    lengths = np.asarray(verified)
    if lengths.shape != (requests,) or not np.issubdtype(lengths.dtype, np.integer):
        remedy = f"give {requests} whole numbers"
        raise ScheduleError("verified", f"{lengths.dtype} {lengths.shape}", remedy)
    if requests and (lengths.min() < 0 or lengths.max() > gamma):
        raise ScheduleError("verified", lengths.tolist(), f"give lengths in 0..{gamma}")
    lengths = lengths.astype(np.int64)
    admitted = np.arange(gamma) < lengths[:, None]
    tau = requests + float(values[admitted].sum())
    theta = float(cost.throughput(tau, requests + int(lengths.sum()), requests))
    return Schedule(lengths, tau, theta)


def _survival(survival: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(survival, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 1:
        raise ScheduleError("survival", values.shape, "give [R, gamma] with gamma >= 1")
    wrong = ~((values >= 0.0) & (values <= 1.0))  # NaN is wrong as well
    if wrong.any():
        raise ScheduleError("survival", float(values[wrong][0]), "give finite values in [0, 1]")
    return values


def _rank_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """m = running minimum of S along each block; [R, γ]."""
    scores: NDArray[np.float64] = np.minimum.accumulate(values, axis=1)
    return scores


def _ranking(scores: NDArray[np.float64], floor: float) -> tuple[NDArray[np.int64], int]:
    """Candidates from best to worst as position-major flat indices k·R + r, and R.

    A stable sort of the position-major order breaks ties by position, then by request.
    """
    flat = scores.T.ravel()
    candidates = np.flatnonzero((flat > 0.0) & (flat >= floor))
    order = candidates[np.argsort(-flat[candidates], kind="stable")]
    return order, len(scores)


def _theta_path(
    values: NDArray[np.float64], order: NDArray[np.int64], cost: CostTable
) -> NDArray[np.float64]:
    """Θ after admitting 0, 1, 2, … candidates in order; [candidates + 1]."""
    requests = len(values)
    gains = np.concatenate([[0.0], values.T.ravel()[order]])
    tokens = requests + np.arange(len(gains))
    return cost.throughput(requests + np.cumsum(gains), tokens, requests)


def _prefix_lengths(admitted: NDArray[np.int64], requests: int) -> NDArray[np.int64]:
    """How many candidates each request got; [R]. They are its first ones by construction."""
    if requests == 0:
        return np.zeros(0, dtype=np.int64)
    return np.bincount(admitted % requests, minlength=requests).astype(np.int64)
