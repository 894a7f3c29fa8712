from __future__ import annotations

import inspect
import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable, MeasuredCostTable
from calib.cost_table_shapes import analytic_cost_table
from calib.errors import ConfigurationError, ScheduleError
from calib.exploration import (
    DEFAULT_BUDGET,
    WARN_BUDGET,
    ExplorationPolicy,
    ExplorationStep,
    exploration_loss,
)
from calib.prefix_scheduler import forecast, schedule_early_stop
from calib.record_schema import COLUMN_BY_NAME
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_outcomes import ExpectedOutcomes
from tests.calib.blocks import simulate

SMOOTH = analytic_cost_table("smooth", max_batch_tokens=4096)
TABLES: dict[str, CostTable] = {
    "smooth": SMOOTH,
    "staircase": analytic_cost_table("staircase", max_batch_tokens=512, knee=32, tile=16),
    "noisy": FlatCostTable((1, 8, 20, 40, 60), (50.0, 51.0, 40.0, 42.0, 10.0), 64),
    "additive": AdditiveCostTable(0.01, (1, 8), (0.0, 0.004), (1, 12, 40), (0.0, 0.001, 0.03)),
}


def policy(cost: CostTable = SMOOTH, gamma: int = 7, **options: Any) -> ExplorationPolicy:
    return ExplorationPolicy(cost, gamma, **options)


def changed(name: str, value: float) -> ExplorationPolicy:
    options: dict[str, Any] = {name: value}
    return replace(policy(), **options)


# ---- what it may look at ----


def test_coins_see_no_logits_and_no_tokens() -> None:
    """The decision takes a place and a load; there is nothing else it could depend on."""
    names = list(inspect.signature(ExplorationPolicy.decide).parameters)
    assert names == ["self", "engine", "step", "requests"]


def test_replicas_ranks_and_restarts_agree() -> None:
    names = [f"r{index}" for index in range(96)]
    one = policy(largest_rate=0.5, budget=0.2, seed=3).decide("e", 11, names)
    other = policy(largest_rate=0.5, budget=0.2, seed=3).decide("e", 11, names[::-1])
    assert one.explored.tolist() == other.explored[::-1].tolist()
    assert 0 < one.explored.sum() < 96


Block = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]


def emitted(block: Block, lengths: dict[int, int]) -> NDArray[np.float64]:
    """Exact law [2, 2] of the first two tokens when ℓ may depend on the drafted x_1."""
    q1, p1, q2, p2 = block
    law = np.zeros((2, 2))
    left = np.maximum(p1 - q1, 0.0)
    for x1 in (0, 1):
        if lengths[x1] == 0:
            law += q1[x1] * p1[:, None] * p2
            continue
        accept = min(1.0, p1[x1] / q1[x1])
        if left.sum() > 0.0:
            law += q1[x1] * (1.0 - accept) * (left / left.sum())[:, None] * p2
        second = p2[x1]
        if lengths[x1] == 2:
            second = np.minimum(q2[x1], p2[x1]) + np.maximum(p2[x1] - q2[x1], 0.0)
        law[x1] += q1[x1] * accept * second
    return law


APPENDIX_A = FlatCostTable((1, 2, 3), (1.0, 0.5, 0.45), 3)
BLOCK: Block = (
    np.array([0.5, 0.5]),
    np.array([0.7, 0.3]),
    np.array([[0.5, 0.5], [1.0, 0.0]]),
    np.array([[0.6, 0.4], [0.0, 1.0]]),
)
SURVIVAL = {0: np.array([[0.8, 0.72]]), 1: np.array([[0.8, 0.0]])}


def test_appendix_a_coins_before_drafting_are_lossless() -> None:
    """Mixing full verification in by a coin leaves the law (.7, .3); by confidence it does not."""
    scheduled = {x: int(schedule_early_stop(SURVIVAL[x], APPENDIX_A).verified[0]) for x in (0, 1)}
    laws = []
    for coin in (False, True):
        step = ExplorationStep(False, 0.3, np.array([coin]), np.array([0.3], dtype=np.float32))
        lengths = {x: int(step.lengths(np.array([scheduled[x]]), 2)[0]) for x in (0, 1)}
        assert lengths[0] == lengths[1] == (2 if coin else 0)
        laws.append(emitted(BLOCK, lengths))
    mixed = 0.7 * laws[0] + 0.3 * laws[1]
    assert mixed == pytest.approx(BLOCK[1][:, None] * BLOCK[3])
    # "Explore where the next confidence is high" is the mistake this order of decisions rules out.
    peeking = emitted(BLOCK, {0: 2, 1: 0})
    assert peeking.sum(axis=1) == pytest.approx([0.85, 0.15])


@pytest.mark.statistical
def test_coins_know_nothing_of_the_block() -> None:
    """Correlation with the confidence of the very blocks they decide about: none."""
    blocks = simulate(30_000, seed=1)
    explorer = policy(budget=0.5, largest_rate=0.3)
    coins = np.concatenate([explorer.decide("e", step, range(100)).explored for step in range(300)])
    assert 0.25 < coins.mean() < 0.35
    correlation = np.corrcoef(coins, blocks.logits[:, 0])[0, 1]
    assert abs(correlation) < 4 / 30_000**0.5


# ---- rate and budget ----


@pytest.mark.statistical
def test_the_rate_of_coins_is_the_stated_one() -> None:
    """100,000 coins of ε = .00253: within four standard errors, over steps and over requests."""
    explorer = policy(budget=WARN_BUDGET)
    rate = explorer.rate(128)
    counts = np.zeros(128)
    steps = 800
    for step in range(steps):
        counts += explorer.decide("engine-7", step, range(128)).explored
    total = steps * 128
    assert counts.sum() == pytest.approx(total * rate, abs=4 * (total * rate) ** 0.5)
    assert counts.max() < steps * rate + 7 * (steps * rate) ** 0.5


def exact_loss(cost: CostTable, survival: NDArray[np.floating], rate: float) -> float:
    """Expected loss of Θ over all sets of coins, by enumeration."""
    requests, gamma = survival.shape
    plan = schedule_early_stop(survival, cost)
    lost = 0.0
    for coins in product([False, True], repeat=requests):
        chance = math.prod(rate if coin else 1.0 - rate for coin in coins)
        lengths = np.where(coins, gamma, plan.verified)
        lost += chance * (1.0 - (forecast(lengths, survival, cost).theta or 0) / (plan.theta or 1))
    return lost


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("seed", range(6))
def test_the_budget_is_never_exceeded_in_expectation(name: str, seed: int) -> None:
    """Exact expectation over 2^R sets of coins, with the survivals as truth, on any step curve."""
    draw = np.random.default_rng(seed)
    requests, gamma = int(draw.integers(1, 9)), int(draw.integers(1, 6))
    survival = np.cumprod(draw.beta(3.0, 1.0, (requests, gamma)), axis=1)
    explorer = policy(TABLES[name], gamma, budget=0.01, largest_rate=0.5)
    rate = explorer.rate(requests)
    assert exact_loss(TABLES[name], survival, rate) <= 0.01 + 1e-12
    worthless = np.zeros((requests, gamma))
    assert exact_loss(TABLES[name], worthless, rate) <= 0.01 + 1e-12


@pytest.mark.statistical
@pytest.mark.parametrize("size", [64, 128, 256])
def test_the_budget_holds_on_a_replayed_log(size: int) -> None:
    """ε from the cost table alone costs at most .1 % of Θ, and not idly little."""
    blocks = simulate(12_800, seed=2)
    columns = {
        "confidence_logits": blocks.logits,
        "verified": np.full(12_800, 7),
        "accepted": blocks.accepted,
    }
    records = AcceptanceRecords.from_columns(7, columns)
    outcomes = ExpectedOutcomes(blocks.true_survival)
    replay = ThroughputReplay.of(records, SMOOTH, batch_size=size, outcomes=outcomes)
    rate = policy().rate(size)
    found = exploration_loss(replay, blocks.true_survival, rate, repeats=20)
    assert found["loss"] + 3 * found["standard_error"] < DEFAULT_BUDGET
    assert found["loss"] > 0.2 * DEFAULT_BUDGET
    assert found["full_rows"] == pytest.approx(rate, rel=0.2)


def test_more_load_means_fewer_coins() -> None:
    rates = [policy().rate(requests) for requests in (16, 32, 64, 128, 256, 512)]
    assert rates == sorted(rates, reverse=True)
    # Beyond the knee a full block of 7 lengthens a step by 7 / B of it at most.
    assert rates[-1] < 2e-4
    assert policy(budget=0.0).rate(64) == 0.0
    assert policy(largest_rate=0.0).rate(64) == 0.0
    assert policy().rate(0) == 0.0
    assert policy(MeasuredCostTable((1,), (0.02,))).rate(64) == 0.05  # free: the cap holds


def test_a_warning_raises_the_budget_and_never_lowers_it() -> None:
    assert policy().warned().budget == WARN_BUDGET
    assert policy(budget=0.02).warned().budget == 0.02
    assert policy().warned().rate(128) > policy().rate(128)


# ---- free harvest and columns ----


def test_load_alone_decides_to_harvest() -> None:
    """t(B) grows by a thousandth at B = 64 of a knee at 256: up to 8 requests of 8 tokens."""
    assert [policy().harvests(requests) for requests in (0, 1, 8, 9, 128)] == [
        False,
        True,
        True,
        False,
        False,
    ]
    # A faster step at a larger batch makes nothing free: the fastest B counts.
    dip = MeasuredCostTable((1, 4, 8), (0.02, 0.01, 0.02))
    assert not policy(dip).harvests(1)


def test_columns_of_a_harvest_and_of_coins() -> None:
    free = policy().decide("e", 0, ["a", "b"])
    assert (free.harvest, free.rate) == (True, 0.0)
    assert free.explored.tolist() == [False, False]  # no coin chose them
    assert free.propensity.tolist() == [1.0, 1.0]
    assert free.lengths([0, 3], 7).tolist() == [7, 7]
    paid = policy(budget=0.3, largest_rate=0.4).decide("e", 0, range(200))
    assert not paid.harvest
    assert paid.propensity == pytest.approx(np.full(200, paid.rate, dtype=np.float32))
    scheduled = np.arange(200) % 8
    found = paid.lengths(scheduled, 7)
    assert found.tolist() == np.where(paid.explored, 7, scheduled).tolist()
    for name in ("explored", "propensity"):
        assert getattr(paid, name).dtype == COLUMN_BY_NAME[name].dtype
    nobody = policy().decide("e", 0, [])
    assert len(nobody.explored) == 0


def test_propensities_say_how_often_a_row_was_full_beforehand() -> None:
    """Inverse propensities recover a mean that only explored rows show: an audit."""
    explorer = policy(budget=0.5, largest_rate=0.3)
    truth, total = 0.0, 0.0
    draw = np.random.default_rng(0)
    for step in range(400):
        values = draw.random(100)
        found = explorer.decide("e", step, range(100))
        truth += values.sum()
        total += (values / found.propensity)[found.explored].sum()
    assert total == pytest.approx(truth, rel=0.05)


def test_wrong_options_are_named() -> None:
    for name in ("budget", "free", "largest_rate"):
        for value in (-0.1, 1.0, True, float("nan")):
            with pytest.raises(ConfigurationError, match=name):
                changed(name, value)
    step = policy().decide("e", 0, ["a"])
    for lengths in ([1, 2], [8], [-1], [0.5]):
        with pytest.raises(ScheduleError, match="scheduled"):
            step.lengths(lengths, 7)
    columns = {"confidence_logits": [[0.5]], "verified": [1], "accepted": [1]}
    replay = ThroughputReplay.of(AcceptanceRecords.from_columns(1, columns), SMOOTH, batch_size=1)
    with pytest.raises(ConfigurationError, match="rate"):
        exploration_loss(replay, [[0.5]], 1.5)
    with pytest.raises(ConfigurationError, match="repeats"):
        exploration_loss(replay, [[0.5]], 0.1, repeats=0)
    assert exploration_loss(replay, [[0.5]], 0.5, repeats=1)["standard_error"] is None
