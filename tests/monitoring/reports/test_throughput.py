from __future__ import annotations

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.cost_table import FlatCostTable
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from monitoring.reports.throughput import NO_COST_TABLE, throughput

COST = FlatCostTable((1, 4, 5, 64), (10.0, 9.0, 4.0, 2.0), 64)


def log(steps: int = 60, **columns: object) -> AcceptanceRecords:
    draw = np.random.default_rng(0)
    rows = 2 * steps
    given = {
        "confidence_logits": draw.normal(0.0, 1.5, (rows, 3)).astype(np.float32),
        "verified": np.full(rows, 3),
        "accepted": draw.integers(0, 4, rows),
        "step": np.repeat(np.arange(steps), 2),
        **columns,
    }
    return AcceptanceRecords.from_columns(3, given)


def test_numbers_are_those_of_the_replay() -> None:
    records, calibration = log(), Calibration.from_temperatures([2.0, 2.0, 2.0], gamma=3)
    found = throughput(records, calibration, COST).to_dict()
    replay = ThroughputReplay.of(records, COST, policy="lagged")  # as an engine runs this table
    raw, served = replay.theta(Calibration.identity(3)), replay.theta(calibration)
    assert found["raw"]["theta"] == raw.theta
    assert found["calibrated"]["theta"] == served.theta
    assert found["loss"] == pytest.approx(1.0 - raw.theta / served.theta)
    assert found["loss_low"] <= found["loss"] <= found["loss_high"]
    assert found["reason"] is None


def test_loads_and_segments_stand_beside_the_log_as_it_ran() -> None:
    records = log(domain=["code", "chat"] * 60)
    calibration = Calibration.from_temperatures([2.0, 2.0, 2.0], gamma=3)
    found = throughput(records, calibration, COST).to_dict()
    loads = {each["requests"]: each for each in found["loads"]}
    assert set(loads) == {1, 8, 32}  # 120 rows make no step of 128
    there = ThroughputReplay.of(records, COST, batch_size=8, policy="lagged")
    assert loads[8]["raw_theta"] == there.theta(Calibration.identity(3)).theta
    assert loads[8]["calibrated_theta"] == there.theta(calibration).theta
    assert loads[8]["modelled_share"] == 0.0
    assert {each["tags"]["domain"] for each in found["segments"]} == {"code", "chat"}
    assert all(each["rows"] == 60 for each in found["segments"])


def test_what_is_not_known_has_a_reason() -> None:
    calibration = Calibration.identity(3)
    assert throughput(log(), calibration, None).to_dict() == {"reason": NO_COST_TABLE}
    unstepped = throughput(log(step=None), calibration, COST)
    assert unstepped.regret is None
    assert "no steps" in (unstepped.reason or "")


def test_torn_steps_are_replayed_as_batches_of_their_usual_size() -> None:
    """Every step had two requests; one row of each was left out of the judged rows."""
    whole = log(step_requests=np.full(120, 2))
    half = whole.select(np.arange(0, 120, 2))
    found = throughput(half, Calibration.identity(3), COST)
    assert found.regret is not None
    assert found.regret.candidate.steps == 30
