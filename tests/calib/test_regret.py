from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.cost_table import FlatCostTable, MeasuredCostTable
from calib.cost_table_shapes import analytic_cost_table
from calib.errors import ConfigurationError, FitRefusedError, InvalidInputError, RecordError
from calib.prefix_scheduler import schedule_early_stop
from calib.records import AcceptanceRecords
from calib.regret import ThetaReplay, ThroughputReplay
from calib.replay_outcomes import ExpectedOutcomes
from calib.sts_parity import fit_sts_parity
from tests.calib.blocks import Blocks, simulate

KNEE = analytic_cost_table("smooth", max_batch_tokens=2048)
EXACT: dict[str, Any] = {"replicates": 200}


def log(accepted: list[int], steps: list[int], gamma: int = 2) -> AcceptanceRecords:
    columns = {
        "confidence_logits": [[0.5] * gamma] * len(accepted),
        "verified": [gamma] * len(accepted),
        "accepted": accepted,
        "step": steps,
    }
    return AcceptanceRecords.from_columns(gamma, columns)


def records_of(blocks: Blocks) -> AcceptanceRecords:
    rows, gamma = blocks.logits.shape
    columns = {
        "confidence_logits": blocks.logits,
        "verified": np.full(rows, gamma),
        "accepted": blocks.accepted,
    }
    return AcceptanceRecords.from_columns(gamma, columns)


def test_two_steps_by_hand() -> None:
    """Step 0 has two requests, step 1 one. SPS: 10 up to B = 3, 9 up to 4, 4 above.

    Step 0: Θ rises 20 → 29 (B = 3) and falls at 4: (2 + .9 + .3)·9 = 28.8. Step 1: 10 → 15 → 19.
    """
    cost = FlatCostTable((1, 4, 5), (10.0, 9.0, 4.0), 5)
    survival = [[0.9, 0.3], [0.2, 0.1], [0.5, 0.4]]
    replay = ThroughputReplay.of(log([2, 0, 1], [0, 0, 1]), cost)
    found = replay.theta(survival)
    assert found.tokens.tolist() == [3.0, 2.0]  # min(2, 1) + min(0, 0) + 2 anchors; min(1, 2) + 1
    assert found.seconds.tolist() == pytest.approx([0.1, 0.1])
    assert found.theta == pytest.approx(25.0)
    assert found.tau == pytest.approx(2.5)
    assert found.predicted_tau == pytest.approx((2.9 + 1.9) / 2)
    assert found.predicted_theta == pytest.approx(24.0)
    assert found.forecast_bias == pytest.approx(-0.04)
    assert found.verified == pytest.approx(1.0)
    assert (found.steps, found.rows, found.left_out) == (2, 3, 0)


def test_loss_by_hand() -> None:
    """Verifying nothing yields 3 tokens in .2 s; the reference 5 in the same time."""
    cost = FlatCostTable((1, 4, 5), (10.0, 9.0, 4.0), 5)
    replay = ThroughputReplay.of(log([2, 0, 1], [0, 0, 1]), cost)
    report = replay.regret(np.zeros((3, 2)), [[0.9, 0.3], [0.2, 0.1], [0.5, 0.4]])
    assert report.loss == pytest.approx(1.0 - 15.0 / 25.0)
    assert (report.loss_low, report.reason) == (None, "too_few_rows")
    plain = report.to_dict()
    assert plain["candidate"]["tau"] == pytest.approx(1.5)
    assert "tokens" not in plain["candidate"]
    assert plain["loss_high"] is None


def test_full_verification_counts_like_the_log() -> None:
    """A step that costs nothing extra is verified whole: the tokens are those of the log."""
    records = log([2, 0, 1, 2], [0, 0, 1, 1])
    found = ThroughputReplay.of(records, MeasuredCostTable((1,), (0.02,))).theta(
        np.full((4, 2), 0.5)
    )
    assert found.tokens.sum() == 5 + 4
    assert found.theta == pytest.approx(9 / 0.04)


def test_rows_outside_the_steps_do_not_matter() -> None:
    """Survivals of all rows are given; those of incomplete steps are not looked at."""
    columns = {
        "confidence_logits": [[0.5, 0.5]] * 4,
        "verified": [2, 1, 2, 2],
        "accepted": [1, 1, 2, 0],
        "step": [0, 0, 1, 1],
    }
    records = AcceptanceRecords.from_columns(2, columns)
    replay = ThroughputReplay.of(records, KNEE)
    survival = np.full((4, 2), 0.5)
    survival[:2] = np.nan
    found = replay.theta(survival)
    assert (found.steps, found.left_out, found.tokens.tolist()) == (1, 2, [4.0])
    trimmed = records.select([0, 1])
    with pytest.raises(FitRefusedError, match="no_rows"):
        ThroughputReplay.of(trimmed, KNEE)


def truth(blocks: Blocks, **options: Any) -> ThroughputReplay:
    outcomes = ExpectedOutcomes(blocks.true_survival)
    return ThroughputReplay.of(records_of(blocks), KNEE, outcomes=outcomes, **options)


def test_expected_tokens_are_those_of_the_scheduler() -> None:
    """With the truth as forecast, predicted and realised agree, and equal Algorithm 1's τ."""
    blocks = simulate(96, seed=1)
    replay = truth(blocks, batch_size=32)
    found = replay.theta(blocks.true_survival)
    wanted = [schedule_early_stop(blocks.true_survival[i : i + 32], KNEE) for i in (0, 32, 64)]
    assert found.tokens == pytest.approx([step.tau or 0.0 for step in wanted])
    assert found.forecast_bias == pytest.approx(0.0, abs=1e-12)


def test_regret_orders_calibrations_as_their_errors() -> None:
    """Over-confidence by T = 1.6 … 1.2 costs most of a per cent at R = 128; scaling mends it."""
    blocks = simulate(32_000, seed=2)
    replay = truth(blocks, batch_size=128)
    oracle = replay.theta(blocks.true_survival)
    raw = replay.regret(Calibration.identity(7), oracle)
    fitted = fit_sts_parity(blocks.logits[:8000], blocks.prefix_mask[:8000]).temperatures
    scaled = replay.regret(Calibration.from_temperatures(fitted, gamma=7), oracle)
    assert 0.005 < raw.loss < 0.015
    assert -1e-9 < scaled.loss < 0.0005
    assert raw.loss_low is not None
    assert raw.loss_low < raw.loss
    # The forecast is off in first order: several per cent.
    assert raw.candidate.forecast_bias > 0.05
    assert abs(scaled.candidate.forecast_bias) < 0.02


def test_counted_and_expected_outcomes_agree() -> None:
    blocks = simulate(64_000, seed=3)
    counted = ThroughputReplay.of(records_of(blocks), KNEE, batch_size=64)
    raw = Calibration.identity(7)
    assert counted.theta(raw).theta == pytest.approx(
        truth(blocks, batch_size=64).theta(raw).theta, rel=0.005
    )


@pytest.mark.slow
@pytest.mark.statistical
def test_the_interval_covers_the_loss() -> None:
    """At 95 %, over 150 logs of 60 steps: nominal, less three standard errors."""
    large = simulate(32 * 3000, seed=9)
    raw = Calibration.identity(7)
    replay = truth(large, batch_size=32)
    loss = replay.regret(raw, replay.theta(large.true_survival)).loss
    covered = 0
    for seed in range(150):
        blocks = simulate(60 * 32, seed=100 + seed)
        counted = ThroughputReplay.of(records_of(blocks), KNEE, batch_size=32)
        report = counted.regret(raw, blocks.true_survival, replicates=200, seed=seed)
        assert report.loss_low is not None
        assert report.loss_high is not None
        covered += report.loss_low <= loss <= report.loss_high
    assert covered / 150 >= 0.95 - 3 * (0.95 * 0.05 / 150) ** 0.5


def test_the_lagged_policy_runs_the_same_log() -> None:
    blocks = simulate(6400, seed=4)
    early = truth(blocks, batch_size=64).theta(blocks.true_survival)
    lagged = truth(blocks, batch_size=64, policy="lagged").theta(blocks.true_survival)
    # A capacity from other requests fits this step less well, but not by much.
    assert 0.95 < lagged.theta / early.theta < 1.0
    with pytest.raises(ConfigurationError, match="policy"):
        truth(blocks, batch_size=64, policy="best").theta(blocks.true_survival)


def test_explored_rows_are_verified_fully() -> None:
    records = log([2, 2, 2, 2], [0, 0, 1, 1])
    replay = ThroughputReplay.of(records, MeasuredCostTable((1, 9), (0.02, 0.1)))
    coins = np.array([True, False, False, False])
    found = replay.theta(np.zeros((4, 2)), explored=coins)
    assert found.tokens.tolist() == [4.0, 2.0]
    assert found.seconds.tolist() == pytest.approx([0.05, 0.03])
    with pytest.raises(RecordError, match="explored"):
        replay.theta(np.zeros((4, 2)), explored=np.array([True]))


def test_the_block_length_follows_what_requests_share() -> None:
    rows = 640
    columns = {
        "confidence_logits": [[0.5, 0.2]] * rows,
        "verified": [2] * rows,
        "accepted": [1] * rows,
        "step": [row // 2 for row in range(rows)],
        "request": [f"r{row // 40}-{row % 2}" for row in range(rows)],
    }
    records = AcceptanceRecords.from_columns(2, columns)
    survival = np.full((rows, 2), 0.5)
    stays = ThroughputReplay.of(records, KNEE).regret(survival, survival, **EXACT)
    assert stays.block_length == 20  # longer than ∛320
    cut = ThroughputReplay.of(records, KNEE, batch_size=2)
    assert cut.regret(survival, survival, **EXACT).block_length == 7
    assert cut.regret(survival, survival, block_length=3, **EXACT).block_length == 3
    assert stays.loss == stays.loss_low == stays.loss_high == 0.0


def test_wrong_input_is_named() -> None:
    replay = ThroughputReplay.of(log([1, 1], [0, 1]), KNEE)
    for wrong in ([[0.5, 0.5]], [[0.5], [0.5]], [["a", "b"]] * 2, [[0.5, 1.5]] * 2):
        with pytest.raises(RecordError, match="survival"):
            replay.theta(wrong)
    other = ThroughputReplay.of(log([1, 1, 1], [0, 1, 2]), KNEE).theta(np.full((3, 2), 0.5))
    with pytest.raises(InvalidInputError, match="replay"):
        replay.regret(other, np.full((2, 2), 0.5))
    with pytest.raises(ConfigurationError, match="block_length"):
        ThroughputReplay.of(log([1] * 9, list(range(9))), KNEE).regret(
            np.full((9, 2), 0.5), np.full((9, 2), 0.5), block_length=0
        )


def test_30000_rows_replay_well_within_a_second() -> None:
    blocks = simulate(30_000, seed=5)
    raw = Calibration.identity(7)
    for size in (1, 64):
        replay = ThroughputReplay.of(records_of(blocks), KNEE, batch_size=size)
        start = time.process_time()
        found: ThetaReplay = replay.theta(raw)
        assert time.process_time() - start < 0.5
        assert found.rows == 30_000 // size * size
