"""Studies on simulated traffic whose truth is known, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calib.cost_table_shapes import analytic_cost_table
from calib.errors import ConfigurationError
from calib.records import AcceptanceRecords
from calib.replay_doubly_robust import DoublyRobustOutcomes
from calib.replay_outcomes import FullyVerified
from calib.throughput_arms import FITTED_ARMS, ThroughputArms, fit_arms
from calib.throughput_study import (
    STATIC_ARMS,
    StudyRules,
    ThroughputStudy,
    known_outcomes,
    lengths_above,
    throughput_study,
)
from tests.support.segment_generator import SegmentedBlocks, simulate_segments

CURVES = {"smooth": analytic_cost_table("smooth", max_batch_tokens=4096)}
RULES = StudyRules(loads=(1, 128), replicates=100)


@pytest.fixture(scope="module")
def traffic() -> tuple[SegmentedBlocks, SegmentedBlocks]:
    return simulate_segments(4000, 1), simulate_segments(128 * 100, 2)


@pytest.fixture(scope="module")
def arms(traffic: tuple[SegmentedBlocks, SegmentedBlocks]) -> ThroughputArms:
    fit, judged = traffic
    return fit_arms(fit.records(), judged.records(), truth=judged.blocks.survival)


@pytest.fixture(scope="module")
def study(
    traffic: tuple[SegmentedBlocks, SegmentedBlocks], arms: ThroughputArms
) -> ThroughputStudy:
    fit, judged = traffic
    return throughput_study(
        fit.records(), judged.records(), arms, CURVES, RULES, truth=judged.blocks.survival
    )


def test_every_arm_is_there(study: ThroughputStudy) -> None:
    assert {cell.arm for cell in study.cells} == {
        *STATIC_ARMS,
        *FITTED_ARMS,
        "oracle",
        "hindsight",
    }
    assert not study.missing
    assert study.truth_known
    json.dumps(study.to_dict(), allow_nan=False)


def test_losses_are_ordered_as_what_the_arms_know(study: ThroughputStudy) -> None:
    """Eight domains at R = 128: pooled numbers leave most of a per cent, segments a tenth of it."""
    loss = {
        arm: study.cell("smooth", 128, arm).regret.loss  # type: ignore[union-attr]
        for arm in (*STATIC_ARMS, *FITTED_ARMS, "oracle")
    }
    assert loss["oracle"] == 0.0
    assert 0.0 < loss["segmented"] < 0.0015
    assert 0.003 < loss["temperature"] < 0.015
    assert loss["temperature"] < loss["raw"] < 0.03
    assert loss["raw"] < loss["fixed"] < loss["full"]  # the best static rule knows no block
    best = study.cell("smooth", 128, "segmented")
    assert best.gain is not None
    assert best.gain == pytest.approx(
        best.replay.theta / study.cell("smooth", 128, "raw").replay.theta - 1.0, rel=1e-12
    )
    assert best.to_dict()["gain_low"] <= best.gain <= best.to_dict()["gain_high"]


def test_forecasts_are_off_in_first_order(study: ThroughputStudy) -> None:
    """ECE of several per cent: raw misleads planning by more than it loses."""
    raw = study.cell("smooth", 128, "raw")
    assert raw.regret is not None
    assert raw.replay.forecast_bias is not None
    assert raw.replay.forecast_bias > 3 * raw.regret.loss
    assert abs(study.cell("smooth", 128, "segmented").replay.forecast_bias or 1.0) < 0.01
    assert study.cell("smooth", 128, "oracle").replay.forecast_bias == pytest.approx(0.0, abs=1e-9)


def test_an_idle_engine_gains_nothing(study: ThroughputStudy) -> None:
    """At R = 1 and a knee of 256 everything is worth verifying, calibrated or not."""
    for arm in ("raw", "sts", "segmented"):
        found = study.cell("smooth", 1, arm)
        assert found.regret is not None
        assert abs(found.regret.loss) < 1e-4


def test_static_choices_come_from_the_fit_part(
    traffic: tuple[SegmentedBlocks, SegmentedBlocks], study: ThroughputStudy
) -> None:
    fixed = study.cell("smooth", 128, "fixed")
    assert fixed.setting in range(8)
    assert fixed.replay.verified == fixed.setting
    threshold = study.cell("smooth", 128, "threshold").setting
    assert threshold in RULES.thresholds
    assert study.cell("smooth", 128, "full").replay.verified == 7.0


def test_lengths_above_a_threshold_by_hand() -> None:
    columns = {
        "confidence_logits": [[0.0, 1.0, -1.0], [-0.1, 5.0, 5.0], [3.0, 3.0, 3.0]],
        "verified": [3] * 3,
        "accepted": [0] * 3,
    }
    records = AcceptanceRecords.from_columns(3, columns)
    assert lengths_above(records, 0.5).tolist() == [2, 0, 3]  # σ(0) = .5 stays
    assert lengths_above(records, 0.0).tolist() == [3, 3, 3]
    assert lengths_above(records, 1.0).tolist() == [0, 0, 0]


def test_a_trimmed_log_is_judged_by_the_doubly_robust_sum(
    traffic: tuple[SegmentedBlocks, SegmentedBlocks], arms: ThroughputArms
) -> None:
    judged = traffic[1].records()
    assert isinstance(known_outcomes(judged, arms.baseline), FullyVerified)
    short = traffic[1].records(np.full(len(judged), 4))
    assert isinstance(known_outcomes(short, arms.baseline), DoublyRobustOutcomes)
    rules = StudyRules(loads=(128,), replicates=50)
    found = throughput_study(traffic[0].records(), short, arms, CURVES, rules)
    whole = throughput_study(traffic[0].records(), judged, arms, CURVES, rules)
    for arm in ("raw", "segmented"):
        mine, exact = (each.cell("smooth", 128, arm).replay for each in (found, whole))
        assert mine.theta == pytest.approx(exact.theta, rel=0.01)
        assert 0.0 < mine.modelled_share < 0.15
        assert exact.modelled_share == 0.0


def test_what_cannot_be_done_is_said(
    traffic: tuple[SegmentedBlocks, SegmentedBlocks], arms: ThroughputArms
) -> None:
    fit, judged = (each.records() for each in traffic)
    rules = StudyRules(loads=(128, 16_384), replicates=20)
    found = throughput_study(fit, judged, arms, CURVES, rules)
    assert found.skipped == (("smooth", 16_384),)  # the fit part has 4,000 rows
    with pytest.raises(ConfigurationError, match="curves"):
        throughput_study(fit, judged, arms, {})
    with pytest.raises(ConfigurationError, match="cell"):
        found.cell("smooth", 3, "raw")
