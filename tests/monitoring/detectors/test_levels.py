"""Two levels on one stream: what each is for, one event a change, one budget at the act level."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from calib.errors import ConfigurationError, FormatError, RecordError
from monitoring.detectors.betting import BettingDetector
from monitoring.detectors.levels import (
    DriftLevels,
    DriftState,
    Level,
    threshold_for,
    warn_tolerance,
)
from monitoring.detectors.likelihood_ratio import LikelihoodRatioDetector
from monitoring.detectors.observations import Observations
from tests.monitoring.traffic import heads_traffic, miscalibrated


def test_warn_tolerance_covers_the_error_of_the_fit() -> None:
    assert warn_tolerance(None) == 0.003
    assert warn_tolerance(0.001) == 0.003
    assert warn_tolerance(0.01) == 0.02
    for wrong in (-0.1, 0.25, math.nan):
        with pytest.raises(ConfigurationError, match="standard_error"):
            warn_tolerance(wrong)


def test_threshold_is_a_time() -> None:
    assert threshold_for(5e6, 1, 0.05) == pytest.approx(1e8)
    for wrong in ((0.0, 1, 0.05), (1.0, 0, 0.05), (1.0, 1, 0.0), (1.0, 1, 1.5)):
        with pytest.raises(ConfigurationError):
            threshold_for(*wrong)


def test_standard_levels() -> None:
    levels = DriftLevels.standard(7, standard_error=0.004)
    assert isinstance(levels.act, LikelihoodRatioDetector)
    assert (levels.warn.tolerance, levels.warn.threshold) == (0.008, 1e5)
    assert (levels.act.tolerance, levels.act.threshold) == (0.01, 1.25e6)
    assert levels.survival is not None
    # P(either alarms within t) ≤ t (1/1.25e6 + 1/5e6) = t / 1e6.
    assert 1 / levels.act.threshold + 1 / levels.survival.threshold == pytest.approx(1e-6)
    alone = DriftLevels.standard(7, survival=False, threshold=1e8)
    assert alone.survival is None
    assert alone.act.threshold == 1e8


def test_betting_may_act_while_the_likelihood_ratio_warns() -> None:
    levels = DriftLevels.standard(7, acting="betting")
    assert isinstance(levels.act, BettingDetector)
    rows = miscalibrated(heads_traffic(np.random.default_rng(1), 20_000), 2000, slope=1.6)
    verdict = levels.update(levels.start(), rows).verdict
    assert verdict.act.alarm is not None
    assert verdict.warn.alarm is not None
    assert verdict.warn.alarm.row <= verdict.act.alarm.row


def test_warn_comes_first_and_each_level_is_raised_once() -> None:
    levels = DriftLevels.standard(7)
    rows = miscalibrated(heads_traffic(np.random.default_rng(2), 12_000), 3000, slope=1.25)
    state, raised = levels.start(), []
    for start in range(0, len(rows), 200):
        step = levels.update(state, rows.select(slice(start, start + 200)))
        state = DriftState.from_dict(json.loads(json.dumps(step.state.to_dict())))
        raised += [(level, start) for level in step.verdict.raised]
    assert [level for level, _ in raised] == [Level.WARN, Level.ACT]
    assert 3000 <= raised[0][1] <= raised[1][1]
    assert step.verdict.level is Level.ACT
    assert json.loads(json.dumps(step.verdict.to_dict(), allow_nan=False))["level"] == "act"
    whole = levels.update(levels.start(), rows)
    assert whole.state.to_dict() == state.to_dict()


def test_small_drift_warns_and_does_not_act() -> None:
    levels = DriftLevels.standard(7)
    rows = heads_traffic(np.random.default_rng(3), 25_000).served(1.0, 0.08)
    verdict = levels.update(levels.start(), rows).verdict
    assert verdict.level is Level.WARN


def test_fresh_champion_is_quiet() -> None:
    levels = DriftLevels.standard(7)
    rows = heads_traffic(np.random.default_rng(4), 30_000, threshold=0.3).served()
    assert levels.update(levels.start(), rows).verdict.level is None


def test_survival_is_needed_where_it_is_watched() -> None:
    levels = DriftLevels.standard(7)
    rows = heads_traffic(np.random.default_rng(5), 100).served()
    bare = Observations(rows.conditional, rows.verified, rows.accepted)
    with pytest.raises(RecordError, match="survival"):
        levels.update(levels.start(), bare)
    alone = DriftLevels.standard(7, survival=False)
    assert alone.update(alone.start(), bare).verdict.survival is None
    state = alone.start().to_dict()
    assert DriftState.from_dict(state).to_dict() == state
    with pytest.raises(FormatError, match="drift state"):
        DriftState.from_dict({"warn": state["warn"]})
