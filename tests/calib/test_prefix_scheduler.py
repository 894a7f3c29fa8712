"""The scheduler against brute force, the paper's counterexample and an engine's arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable, MeasuredCostTable
from calib.cost_table_shapes import analytic_cost_table
from calib.cost_table_staircase import StaircaseCostTable
from calib.errors import ScheduleError
from calib.prefix_scheduler import (
    ENGINE_SURVIVAL_FLOOR,
    VerifyLengthLimits,
    allocate,
    capacity_unconstrained,
    forecast,
    schedule_early_stop,
    schedule_fixed,
    schedule_lagged,
    schedule_threshold,
    schedule_unconstrained,
)

Array = NDArray[Any]

# Paper, Appendix A: SPS(1) = 1, SPS(2) = .5, SPS(3) = .45.
APPENDIX_A = FlatCostTable((1, 2, 3), (1.0, 0.5, 0.45), 3)


def survivals(requests: int, gamma: int, seed: int) -> Array:
    confidence = np.random.default_rng(seed).beta(4.0, 1.0, (requests, gamma))
    return np.asarray(np.cumprod(confidence.astype(np.float32), axis=1))


def global_search(survival: Array, cost: CostTable) -> Array:
    """The unsafe schedule: capacity and ranking from the same step."""
    return schedule_unconstrained(survival, cost).verified


# ---- the best schedule ----


def best_throughput(survival: Array, cost: CostTable) -> float:
    requests, gamma = survival.shape
    best = 0.0
    for lengths in itertools.product(range(gamma + 1), repeat=requests):
        tau = requests + sum(survival[r, :n].sum() for r, n in enumerate(lengths))
        best = max(best, float(tau * cost.steps_per_second(requests + sum(lengths), requests)))
    return best


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", ["smooth", "kneed"])
def test_early_stop_is_optimal_on_unimodal_curves(shape: str, seed: int) -> None:
    survival = survivals(3, 4, seed).astype(np.float64)
    for knee in (2, 4, 7, 12):
        cost = analytic_cost_table(shape, max_batch_tokens=15, knee=knee)
        found = schedule_early_stop(survival, cost)
        assert found.theta == pytest.approx(best_throughput(survival, cost), rel=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_global_search_is_optimal_on_any_curve(seed: int) -> None:
    rng = np.random.default_rng(seed)
    survival = survivals(3, 4, seed).astype(np.float64)
    jagged = MeasuredCostTable(tuple(range(1, 16)), tuple(rng.uniform(0.01, 0.03, 15).tolist()))
    stairs = analytic_cost_table("staircase", max_batch_tokens=15, knee=5, tile=4)
    flat = FlatCostTable((1, 6, 11), (90.0, 70.0, 30.0), 15)
    for cost in (jagged, stairs, flat):
        found = forecast(global_search(survival, cost), survival, cost)
        assert found.theta == pytest.approx(best_throughput(survival, cost), rel=1e-12)


def test_early_stop_waits_before_a_cliff_and_the_global_search_crosses_it() -> None:
    survival = np.array([[0.9, 0.8, 0.7, 0.6]])
    cost = FlatCostTable((1, 2, 5), (1.0, 0.5, 0.49), 5)
    assert schedule_early_stop(survival, cost).verified.tolist() == [0]
    assert global_search(survival, cost).tolist() == [4]


@pytest.mark.parametrize("seed", range(8))
def test_the_unconstrained_search_is_the_best_of_all_allocations_and_says_so(seed: int) -> None:
    """Against every one of 5³ allocations, on a staircase as an engine pads it."""
    survival = survivals(3, 4, seed).astype(np.float64)
    stairs = StaircaseCostTable(((1, 0.5),), ((4, 5.0), (8, 6.0), (12, 9.0), (15, 15.0)), 12)
    found = schedule_unconstrained(survival, stairs)
    assert found.theta == pytest.approx(best_throughput(survival, stairs), rel=1e-12)
    assert found.anticipating
    for lossless in (
        schedule_early_stop(survival, stairs),
        schedule_lagged(survival, survivals(3, 4, seed + 50), stairs),
    ):
        assert not lossless.anticipating
        assert (lossless.theta or 0.0) <= (found.theta or 0.0) + 1e-12


def test_a_schedule_counts_anchors_and_bonus_tokens() -> None:
    survival = np.array([[0.5, 0.25], [0.8, 0.4], [0.9, 0.1]])
    cost = MeasuredCostTable((1, 11), (0.1, 0.2))
    found = forecast(np.array([2, 0, 1]), survival, cost)
    assert found.budget == 3
    assert found.batch_tokens == 6  # Σ (1 + ℓ)
    assert found.tau == pytest.approx(3 + 0.75 + 0.9)  # Σ (1 + Σ S)
    assert found.theta == pytest.approx(4.65 / 0.15)


def test_a_token_that_leaves_throughput_unchanged_is_not_verified() -> None:
    survival = np.array([[0.5, 0.5]])
    cost = FlatCostTable((1, 2, 3), (1.0, 1.0 / 1.5, 1.0 / 1.9), 3)
    assert schedule_early_stop(survival, cost).verified.tolist() == [0]
    assert capacity_unconstrained(survival, FlatCostTable((1, 2), (1.5, 1.0), 2)) == 2


def test_tokens_without_survival_are_no_candidates() -> None:
    free = FlatCostTable((1,), (1.0,), 99)
    survival = np.array([[0.5, 0.0, 0.0], [0.5, 1e-7, 0.0]])
    assert schedule_early_stop(survival, free).verified.tolist() == [1, 2]
    assert allocate(survival, 6).tolist() == [1, 2]
    assert allocate(survival, 6, survival_floor=ENGINE_SURVIVAL_FLOOR).tolist() == [1, 1]


def test_no_requests() -> None:
    found = schedule_early_stop(np.zeros((0, 7)), APPENDIX_A)
    assert (found.verified.tolist(), found.budget, found.tau, found.theta) == ([], 0, 0.0, 0.0)
    assert allocate(np.zeros((0, 7)), 3).tolist() == []


# ---- losslessness ----


def test_appendix_a_early_stop_never_looks_at_the_next_token() -> None:
    for c2 in (0.0, 0.3, 0.9, 1.0):
        found = schedule_early_stop(np.array([[0.8, 0.8 * c2]]), APPENDIX_A)
        assert found.verified.tolist() == [0]
        assert found.theta == 1.0


def test_appendix_a_global_search_on_the_same_step_does() -> None:
    lengths = {c2: global_search(np.array([[0.8, 0.8 * c2]]), APPENDIX_A)[0] for c2 in (0.9, 0.0)}
    assert lengths == {0.9: 2, 0.0: 0}
    best = forecast(np.array([2]), np.array([[0.8, 0.72]]), APPENDIX_A)
    assert best.theta == pytest.approx(1.134)


Block = tuple[Array, Array, Array, Array]  # q1 [2], p1 [2], q2 [2, 2], p2 [2, 2] by x1


def emitted_pair(block: Block, length_of: Callable[[int], int]) -> Array:
    """Exact law of the first two tokens when ℓ may depend on x_1 (as c_2 does); [2, 2].

    Tokens that this step does not emit come from the target, as a lossless next step gives them.
    """
    q1, p1, q2, p2 = block
    law = np.zeros((2, 2))
    for x1 in (0, 1):
        if length_of(x1) == 0:
            law += q1[x1] * p1[:, None] * p2
            continue
        accept = min(1.0, p1[x1] / q1[x1])
        residual = np.maximum(p1 - q1, 0.0)
        if residual.sum() > 0.0:
            law += q1[x1] * (1.0 - accept) * (residual / residual.sum())[:, None] * p2
        second = p2[x1]
        if length_of(x1) == 2:
            kept = np.minimum(q2[x1], p2[x1])
            left = np.maximum(p2[x1] - q2[x1], 0.0)
            second = kept + left
        law[x1] += q1[x1] * accept * second
    return law


def appendix_block() -> Block:
    q1, p1 = np.array([0.5, 0.5]), np.array([0.7, 0.3])
    q2 = np.array([[0.5, 0.5], [1.0, 0.0]])
    return q1, p1, q2, np.array([[0.6, 0.4], [0.0, 1.0]])


def test_appendix_a_output_law() -> None:
    """c_2 = .9 after A, 0 after B: the global search emits (.85, .15) instead of (.7, .3)."""
    block = appendix_block()
    survival = {0: np.array([[0.8, 0.72]]), 1: np.array([[0.8, 0.0]])}
    wrong = emitted_pair(block, lambda x1: int(global_search(survival[x1], APPENDIX_A)[0]))
    assert wrong.sum(1) == pytest.approx([0.85, 0.15])
    right = emitted_pair(
        block, lambda x1: int(schedule_early_stop(survival[x1], APPENDIX_A).verified[0])
    )
    assert right.sum(1) == pytest.approx([0.7, 0.3])


@pytest.mark.property
@given(seed=st.integers(0, 2**20))
def test_the_emitted_law_is_the_targets(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q1, p1 = rng.dirichlet([1.0, 1.0], 2)
    q2, p2 = rng.dirichlet([1.0, 1.0], 2), rng.dirichlet([1.0, 1.0], 2)
    first = float(np.minimum(q1, p1).sum())
    # S_2 from the token that was drafted: it may exceed S_1.
    alpha = np.minimum(1.0, p1 / q1)
    survival = {x: np.array([[first, alpha[x] * np.minimum(q2[x], p2[x]).sum()]]) for x in (0, 1)}
    cost = MeasuredCostTable((1, 2, 3), tuple(rng.uniform(0.5, 1.5, 3).tolist()))
    capacity = int(rng.integers(0, 3))
    threshold = float(rng.uniform(0.2, 0.9))
    policies: list[Callable[[Array], Array]] = [
        lambda s: schedule_early_stop(s, cost).verified,
        lambda s: allocate(s, capacity),
        lambda s: schedule_threshold(s, threshold).verified,
    ]
    for policy in policies:
        lengths = [int(policy(survival[x])[0]) for x in (0, 1)]
        law = emitted_pair((q1, p1, q2, p2), lengths.__getitem__)
        assert np.allclose(law, p1[:, None] * p2, rtol=0, atol=1e-12)


def rising(requests: int, gamma: int) -> st.SearchStrategy[Array]:
    """Survivals that may rise along a block and often tie."""
    values = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 1.0])
    return arrays(np.float64, (requests, gamma), elements=values)


@pytest.mark.property
@given(data=st.data(), requests=st.integers(1, 4), gamma=st.integers(2, 5))
def test_later_confidences_never_decide_about_earlier_positions(
    data: Any, requests: int, gamma: int
) -> None:
    before = data.draw(rising(requests, gamma))
    after = before.copy()
    row, k = data.draw(st.integers(0, requests - 1)), data.draw(st.integers(1, gamma - 1))
    after[row, k:] = data.draw(rising(1, gamma))[0, k:]
    seconds = data.draw(
        st.lists(
            st.floats(0.01, 0.05), min_size=1 + requests * gamma, max_size=1 + requests * gamma
        )
    )
    cost = MeasuredCostTable(tuple(range(1, len(seconds) + 1)), tuple(seconds))
    capacity = data.draw(st.integers(0, requests * gamma))
    lagged = data.draw(rising(requests, gamma))
    policies: list[Callable[[Array], Array]] = [
        lambda s: schedule_early_stop(s, cost).verified,
        lambda s: allocate(s, capacity),
        lambda s: schedule_lagged(s, lagged, cost).verified,
        lambda s: schedule_threshold(s, 0.5).verified,
    ]
    for policy in policies:
        # {ℓ ≥ j} for j ≤ k is the same event before and after.
        assert min(policy(before)[row], k) == min(policy(after)[row], k)


def test_m2_ranking_on_a_survival_that_rises_is_not_lossless() -> None:
    """One slot, a rival at .7, S = (.6, .9) after A and (.6, .02) after B."""
    q1, p1 = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    survival = {0: np.array([[0.6, 0.9], [0.7, 0.0]]), 1: np.array([[0.6, 0.02], [0.7, 0.0]])}

    def emitted_a(length_of: Callable[[Array], int]) -> float:
        block = q1, p1, np.full((2, 2), 0.5), np.full((2, 2), 0.5)
        return float(emitted_pair(block, lambda x1: length_of(survival[x1])).sum(1)[0])

    def by_survival(scores: Array) -> int:
        """The slot goes to the block that holds the largest S."""
        return int(scores.max(axis=1).argmax() == 0)

    assert emitted_a(by_survival) == pytest.approx(0.95)
    assert emitted_a(lambda scores: int(allocate(scores, 1)[0])) == pytest.approx(0.9)


# ---- order ----


def test_m6_confidences_that_round_to_one() -> None:
    logits = np.array([[40.0, 90.0, 50.0], [99.0, 30.0, 20.0], [35.0, 35.0, 35.0]])
    confidence = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    survival = np.cumprod(confidence, axis=1)
    assert (survival == 1.0).all()
    expected = [
        [0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [2, 1, 1], [2, 2, 1],
        [2, 2, 2], [3, 2, 2], [3, 3, 2], [3, 3, 3], [3, 3, 3],
    ]  # fmt: skip
    assert [allocate(survival, k).tolist() for k in range(11)] == expected


@pytest.mark.property
@given(data=st.data(), requests=st.integers(1, 5), gamma=st.integers(1, 5))
def test_ties_and_prefixes(data: Any, requests: int, gamma: int) -> None:
    """One more token always goes to the best (score, position, request) whose prefix is in."""
    survival = data.draw(rising(requests, gamma))
    scores = np.minimum.accumulate(survival, axis=1)
    ranked = sorted(
        (-scores[r, k], k, r) for r in range(requests) for k in range(gamma) if scores[r, k] > 0
    )
    lengths = [0] * requests
    for taken, (_, k, r) in enumerate(ranked):
        assert allocate(survival, taken).tolist() == lengths
        assert lengths[r] == k  # the prefix is closed
        lengths[r] += 1
    assert allocate(survival, requests * gamma).tolist() == lengths


@pytest.mark.slow
@pytest.mark.property
@given(data=st.data(), requests=st.integers(1, 6), gamma=st.integers(1, 6))
def test_r27_any_temperature_gives_survivals_that_never_increase(
    data: Any, requests: int, gamma: int
) -> None:
    finite = st.floats(-1e4, 1e4, width=32)
    logits = data.draw(arrays(np.float32, (requests, gamma), elements=finite))
    temperatures = data.draw(arrays(np.float32, gamma, elements=st.floats(0.0625, 20.0, width=32)))
    with np.errstate(over="ignore"):
        confidence = 1.0 / (1.0 + np.exp(-logits / temperatures))
    survival = np.cumprod(confidence, axis=1)
    assert (np.diff(survival, axis=1) <= 0.0).all()
    found = schedule_early_stop(survival, FlatCostTable((1,), (1.0,), 1))
    assert ((survival > 0.0).sum(axis=1) >= found.verified).all()


# ---- an engine's arithmetic ----


def engine_budget(survival: Array, cost: CostTable, columns: int) -> int:
    """SGLang's budget: flatten, drop below eps, sort, take the first global maximum of Θ."""
    requests = len(survival)
    candidates = survival[:, :columns].ravel()
    candidates = np.sort(candidates[candidates >= np.float32(1e-6)].astype(np.float64))[::-1]
    best, best_theta, tau = 0, -np.inf, 0.0
    for budget in range(len(candidates) + 1):
        tau += candidates[budget - 1] if budget else 0.0
        sps = float(cost.steps_per_second(requests + budget, requests))
        theta = (requests + tau) * sps
        if isinstance(cost, AdditiveCostTable):
            theta = (requests + tau) / float(cost.step_seconds(requests + budget, requests))
        if theta > best_theta:
            best, best_theta = budget, theta
    return best


def engine_verify_lens(survival: Array, budget: int, minimum: int, maximum: int) -> list[int]:
    """SGLang's allocation, its verify_len counting the anchor."""
    requests, gamma = survival.shape
    ranked = sorted(
        (-float(survival[r, k]), k, r)
        for r in range(requests)
        for k in range(min(maximum, gamma))
        if survival[r, k] >= np.float32(1e-6)
    )
    lens = [minimum] * requests
    for _, _, r in ranked[:budget]:
        lens[r] += 1
    return [min(max(n, minimum, 1), maximum) for n in lens]


ENGINE_TABLES: list[CostTable] = [
    FlatCostTable((1,), (1.0,), 64),
    FlatCostTable((1, 8, 16, 24), (100.0, 93.0, 60.0, 41.0), 64),
    AdditiveCostTable(0.01, (1, 4), (0.001, 0.002), (1, 9, 30), (0.0, 0.002, 0.02)),
    AdditiveCostTable(0.01, (2,), (0.001,), (5,), (0.002,)),
]


@pytest.mark.parity
@pytest.mark.parametrize("cost", ENGINE_TABLES)
@pytest.mark.parametrize("seed", range(8))
def test_equals_the_engine(cost: CostTable, seed: int) -> None:
    gamma, requests = 5, 1 + seed
    lagged, current = survivals(requests, gamma, seed), survivals(requests, gamma, seed + 100)
    lagged[0] = 1.0  # a new request
    current[-1, 2:] = 1e-9
    for minimum, maximum in [(1, gamma + 1), (1, 3), (0, gamma + 1), (2, 4), (3, 3), (0, 1)]:
        limits = VerifyLengthLimits(minimum, maximum)
        floor = {"survival_floor": ENGINE_SURVIVAL_FLOOR}
        capacity = capacity_unconstrained(lagged, cost, limits=limits, **floor)
        assert capacity == engine_budget(lagged, cost, maximum)
        for budget in (capacity, 1, 4, requests * gamma):
            found = allocate(current, budget, limits=limits, **floor) + 1
            assert found.tolist() == engine_verify_lens(current, budget, minimum, maximum)
        both = schedule_lagged(current, lagged, cost, limits=limits, **floor)
        assert (
            both.verified.tolist() == allocate(current, capacity, limits=limits, **floor).tolist()
        )
        assert both.theta == forecast(both.verified, current, cost).theta


# ---- simple policies and refusals ----


def test_fixed() -> None:
    found = schedule_fixed(3, 7, 4)
    assert (found.verified.tolist(), found.batch_tokens, found.tau) == ([4, 4, 4], 15, None)
    assert schedule_fixed(0, 7, 4).batch_tokens == 0


def test_threshold_cuts_at_the_first_position_below() -> None:
    values = np.array([[0.9, 0.4, 0.9], [0.5, 0.5, 0.5], [0.1, 0.9, 0.9]])
    assert schedule_threshold(values, 0.5).verified.tolist() == [1, 3, 0]
    assert schedule_threshold(values, 0.0).verified.tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    "survival",
    [
        np.zeros(3),
        np.zeros((3, 0)),
        np.array([[0.5, 1.1]]),
        np.array([[-0.1]]),
        np.array([[np.nan]]),
    ],
)
def test_wrong_survivals_are_refused(survival: Array) -> None:
    for call in (
        lambda: schedule_early_stop(survival, APPENDIX_A),
        lambda: capacity_unconstrained(survival, APPENDIX_A),
        lambda: allocate(survival, 1),
        lambda: schedule_threshold(survival, 0.5),
    ):
        with pytest.raises(ScheduleError, match="survival"):
            call()


def test_wrong_options_are_refused() -> None:
    survival = np.full((2, 3), 0.5)
    with pytest.raises(ScheduleError, match="capacity"):
        allocate(survival, -1)
    for minimum, maximum in [(2, 1), (-1, 3), (0, 5), (0, 0)]:
        with pytest.raises(ScheduleError, match="limits"):
            allocate(survival, 1, limits=VerifyLengthLimits(minimum, maximum))
    for verified in (np.array([1]), np.array([1, 4]), np.array([-1, 0]), np.array([0.5, 1.0])):
        with pytest.raises(ScheduleError, match="verified"):
            forecast(verified, survival, APPENDIX_A)
    for arguments in [(-1, 3, 0), (1, 0, 0), (1, 3, 4), (1, 3, -1)]:
        with pytest.raises(ScheduleError):
            schedule_fixed(*arguments)
    with pytest.raises(ScheduleError, match="threshold"):
        schedule_threshold(survival, float("nan"))
