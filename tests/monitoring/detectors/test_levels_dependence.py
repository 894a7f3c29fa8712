"""Requests whose rows share luck: what breaks, and what a design effect mends."""

from __future__ import annotations

import numpy as np
import pytest

from calib.errors import ConfigurationError
from monitoring.detectors.betting import BettingDetector, Stream
from monitoring.detectors.levels import DriftLevels
from monitoring.detectors.likelihood_ratio import LikelihoodRatioDetector
from tests.monitoring.traffic import GAMMA, miscalibrated, shared_luck_traffic

ROWS, RUNS, THRESHOLD = 6000, 60, 1e5


def alarmed(levels: DriftLevels, side_by_side: int) -> float:
    """Share of calibrated runs in which the act level alarms."""
    count = 0
    for seed in range(RUNS):
        rng = np.random.default_rng([side_by_side, seed])
        rows = shared_luck_traffic(rng, ROWS, side_by_side=side_by_side).served()
        verdict = levels.update(levels.start(), rows).verdict
        count += any(each.alarm is not None for each in verdict.acting)
    return count / RUNS


@pytest.mark.slow
@pytest.mark.statistical
def test_one_request_at_a_time_needs_its_design_effect() -> None:
    """P(alarm within t rows) ≤ t / A = .06; three standard errors of 60 runs are .09."""
    plain = DriftLevels.standard(GAMMA, threshold=THRESHOLD)
    tempered = DriftLevels.standard(GAMMA, threshold=THRESHOLD, design_effect=3.3)
    bound = ROWS / THRESHOLD + 0.09
    assert alarmed(plain, 1) > bound
    assert alarmed(tempered, 1) <= bound
    assert alarmed(plain, 64) <= bound


@pytest.mark.statistical
def test_a_design_effect_costs_its_share_of_delay() -> None:
    delays = {}
    for effect in (1.0, 2.0):
        levels = DriftLevels.standard(GAMMA, design_effect=effect)
        waited = []
        for seed in range(10):
            traffic = shared_luck_traffic(np.random.default_rng([2, seed]), 5000)
            verdict = levels.update(levels.start(), miscalibrated(traffic, 2000, slope=1.6)).verdict
            assert verdict.act.alarm is not None
            waited.append(verdict.act.alarm.row - 2000)
        delays[effect] = float(np.mean(waited))
    assert 1.5 < delays[2.0] / delays[1.0] < 2.5


def test_log_factors_are_divided_and_rounded_down() -> None:
    plain = LikelihoodRatioDetector(GAMMA, 0.01, 1e6)
    tempered = LikelihoodRatioDetector(GAMMA, 0.01, 1e6, design_effect=2.0)
    gap = plain.table / 2.0 - tempered.table
    assert gap.min() >= 0.0
    assert gap.max() < 2.0**-16
    bets = BettingDetector((Stream("r", 0.0, 1.0),), 1e6, design_effect=2.0)
    state = bets.update(bets.start(), [np.full(32, 0.5)]).state
    # Stake .8 on .5 above 0: 32 rows at ln(1.4) / 2.
    assert state.log_values[4] == pytest.approx(16 * np.log(1.4), abs=32 * 2.0**-16)


def test_another_design_effect_is_another_detector() -> None:
    names = [DriftLevels.standard(GAMMA, design_effect=d).start().act.signature for d in (1.0, 2.0)]
    assert names[0] != names[1]
    for wrong in (0.5, 101.0, float("nan")):
        with pytest.raises(ConfigurationError, match="design_effect"):
            DriftLevels.standard(GAMMA, design_effect=wrong)
