from __future__ import annotations

import numpy as np
import pytest

from calib.cost_table import FlatCostTable
from calib.cost_table_shapes import analytic_cost_table
from calib.errors import FitRefusedError
from calib.log_replay import cross_fitted_survival, log_outcomes, replay_log, usual_requests
from calib.records import AcceptanceRecords
from calib.replay_doubly_robust import DoublyRobustOutcomes
from calib.replay_outcomes import ExpectedOutcomes, FullyVerified
from tests.support.leaky_generator import LeakyBlocks, simulate_leaky, trimmed_lengths

COST = analytic_cost_table("smooth", max_batch_tokens=2048)


def logged(blocks: LeakyBlocks, verified: np.ndarray | None = None) -> AcceptanceRecords:
    records = blocks.records(verified)
    rows = len(records)
    columns = records.columns()
    columns["request"] = np.array([f"r{row % 97}" for row in range(rows)], dtype=object)
    columns["step"] = np.arange(rows) // 128
    columns["step_requests"] = np.full(rows, 128)
    return AcceptanceRecords.from_columns(7, columns)


@pytest.fixture(scope="module")
def blocks() -> LeakyBlocks:
    return simulate_leaky(128 * 120, 3)


def test_a_trimmed_log_tells_what_the_whole_one_would(blocks: LeakyBlocks) -> None:
    """Trimmed at R = 128: Θ of raw confidence within 1 % of its exact value, and S within .02."""
    trimmed = logged(blocks, trimmed_lengths(blocks.logits))
    replay = replay_log(trimmed, COST)
    assert isinstance(replay.outcomes, DoublyRobustOutcomes)
    raw = 1.0 / (1.0 + np.exp(-blocks.logits.astype(np.float64)))
    survival = np.cumprod(raw, axis=1)
    found = replay.theta(survival)
    exact = replay_log(trimmed, COST, outcomes=ExpectedOutcomes(blocks.survival)).theta(survival)
    assert found.theta == pytest.approx(exact.theta, rel=0.01)
    assert 0.0 <= found.modelled_share < 0.01  # it schedules what was scheduled
    model = cross_fitted_survival(trimmed)
    assert np.abs(model.mean(axis=0) - blocks.survival.mean(axis=0)).max() < 0.02
    deep = replay.theta_of(7)
    assert deep.modelled_share > 0.3  # and says how much of full verification it never saw
    truth = replay_log(trimmed, COST, outcomes=ExpectedOutcomes(blocks.survival)).theta_of(7)
    assert deep.theta == pytest.approx(truth.theta, rel=0.03)


def test_an_engines_table_is_replayed_as_the_engine_schedules(blocks: LeakyBlocks) -> None:
    """Early stop waits before the first stair of a flat table; the engine searches beyond it."""
    probes = tuple(range(1, 1024, 64))
    sps = tuple((1.0 / COST.step_seconds(np.array(probes), 128)).tolist())
    flat = FlatCostTable(probes, sps, 1024)
    whole = logged(blocks)
    survival = blocks.survival
    chosen = replay_log(whole, flat)
    assert (chosen.policy, replay_log(whole, COST).policy) == ("lagged", "early_stop")
    waiting = replay_log(whole, flat, policy="early_stop").theta(survival)
    assert waiting.theta < 0.9 * chosen.theta(survival).theta


def test_a_whole_log_counts_itself(blocks: LeakyBlocks) -> None:
    whole = logged(blocks)
    assert isinstance(log_outcomes(whole), FullyVerified)
    assert replay_log(whole, COST).steps.steps == 120


def test_torn_steps_become_steps_of_the_usual_size(blocks: LeakyBlocks) -> None:
    torn = logged(blocks).select(np.arange(0, 128 * 120, 3))
    assert usual_requests(torn) == 128
    assert replay_log(torn, COST).steps.sizes.tolist() == [128] * 40
    with pytest.raises(FitRefusedError):
        replay_log(torn.select(slice(0, 50)), COST, batch_size=64)


def test_a_model_never_speaks_of_what_nobody_verified(blocks: LeakyBlocks) -> None:
    short = logged(blocks, np.minimum(trimmed_lengths(blocks.logits), 4))
    with pytest.raises(FitRefusedError, match="position 5 was observed 0 times"):
        log_outcomes(short)
