"""Throughput of a drift and of a promotion, where costs are known."""

from __future__ import annotations

import numpy as np

from calib.cost_table_shapes import analytic_cost_table
from calib.records import AcceptanceRecords
from monitoring.loop_decisions import Promote
from monitoring.loop_regret import promotion_loss, promotion_worth, theta_loss, with_worth
from tests.monitoring.loop_rows import revision, rows

COST = analytic_cost_table("smooth", max_batch_tokens=512, knee=128)


def stepped(seed: int, count: int, scale: float) -> AcceptanceRecords:
    columns = rows(seed, count, scale=scale).columns()
    columns["step_requests"] = np.full(count, 64)
    return AcceptanceRecords.from_columns(7, columns)


def test_a_drift_costs_throughput_and_the_right_numbers_cost_none() -> None:
    records = stepped(1, 64 * 60, 2.5)
    drifted = theta_loss(records, COST, revision(0))
    mended = theta_loss(records, COST, revision(1, 2.5))
    assert drifted is not None
    assert mended is not None
    assert drifted > 0.002 > mended


def test_a_promotion_that_loses_throughput_is_known_by_its_sign() -> None:
    records = stepped(2, 64 * 60, 1.0)
    worse = promotion_loss(records, COST, revision(0), revision(1, 0.3))
    better = promotion_loss(records, COST, revision(1, 0.3), revision(0))
    assert worse is not None
    assert better is not None
    assert worse > 0.0005
    assert better < 0.0


def test_a_promotion_says_what_it_is_worth() -> None:
    records = stepped(2, 64 * 60, 1.0)
    promote = Promote(7, "better by 0.1 nats a row", {"rows": 3840})
    gains = promotion_worth(records, COST, revision(1, 0.3), revision(0))
    assert gains is not None
    assert gains.verdict == "gains"
    told = with_worth(promote, gains)
    assert told.evidence["rows"] == 3840
    assert told.evidence["throughput"]["gain_low"] > 0.0
    assert "throughput gains: +" in told.reason
    # A sharper calibration that schedules alike is labelled as what it is.
    alike = promotion_worth(records, COST, revision(0), revision(1, 1.01))
    assert alike is not None
    assert alike.verdict == "no measurable change"
    assert "throughput no measurable change" in with_worth(promote, alike).reason


def test_a_trimmed_log_is_weighed_as_the_whole_one_would_be() -> None:
    """The scheduler trims what raw confidence calls hopeless; the verdicts keep their sign."""
    whole = stepped(5, 64 * 120, 1.0)
    raw = np.cumprod(1.0 / (1.0 + np.exp(-whole.confidence_logits.astype(float))), axis=1)
    columns = {**whole.columns()}
    columns["verified"] = np.minimum((raw > 0.1).sum(axis=1), whole.verified)
    columns["accepted"] = np.minimum(whole.accepted, columns["verified"])
    trimmed = AcceptanceRecords.from_columns(7, columns)
    known = promotion_loss(whole, COST, revision(0), revision(1, 0.3))
    found = promotion_loss(trimmed, COST, revision(0), revision(1, 0.3))
    assert known is not None
    assert found is not None
    assert found > 0.0005
    assert abs(found - known) < 0.02


def test_what_cannot_be_replayed_claims_nothing() -> None:
    trimmed = stepped(3, 640, 1.0)
    columns = {**trimmed.columns()}
    columns["verified"] = np.minimum(trimmed.verified, 2)
    columns["accepted"] = np.minimum(trimmed.accepted, columns["verified"])
    short = AcceptanceRecords.from_columns(7, columns)
    assert promotion_loss(short, COST, revision(0), revision(1, 1.5)) is None
    assert theta_loss(stepped(4, 128, 1.0), COST, revision(0)) is None  # two steps
