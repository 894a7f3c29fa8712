"""What both estimators share; their own tests cover the fits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.calibration import CalibrationKey
from calib.conditional_temperature import ConditionalTemperature
from calib.errors import CalibrationValueError, ConfigurationError, FitRefusedError, RecordError
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.statuses import Refusal
from calib.temperature_estimator import (
    PUBLISHABLE_BOUNDS,
    checked_bounds,
    checked_count,
    checked_logits,
    checked_positive,
)
from tests.calib.blocks import simulate

ESTIMATORS = [SequentialTemperatureScaling, ConditionalTemperature]
KEY = CalibrationKey("t", "r1", "none", "d", "r2", "none", 2, "anchor_excluded")


@pytest.fixture(scope="module", params=ESTIMATORS)
def fitted(request: pytest.FixtureRequest) -> Any:
    blocks = simulate(3000, seed=1, gamma=2)
    return request.param().fit(blocks.logits, blocks.accepted)


def test_learned_attributes_have_one_entry_per_position(fitted: Any) -> None:
    assert fitted.n_features_in_ == 2
    for name in ("temperatures_", "ece_before_", "ece_after_", "position_statuses_"):
        assert len(getattr(fitted, name)) == 2
    assert (fitted.ece_after_ < fitted.ece_before_).all()


def test_calibration_carries_key_time_and_evidence(fitted: Any) -> None:
    calibration = fitted.calibration(KEY, fitted_at="2026-11-29T12:00:00Z")
    assert calibration.key == KEY
    assert calibration.fitted_at == "2026-11-29T12:00:00Z"
    evidence = json.loads(calibration.to_json())["evidence"]
    assert evidence["parameters"]["minimum_rows"] == 1000
    assert [entry["position"] for entry in evidence["positions"]] == [1, 2]
    assert calibration.digest == fitted.calibration(KEY).digest


def test_calibration_refuses_another_gamma(fitted: Any) -> None:
    other = CalibrationKey("t", "r1", "none", "d", "r2", "none", 3, "anchor_excluded")
    with pytest.raises(CalibrationValueError, match=r"key\.gamma"):
        fitted.calibration(other)


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.zeros(2), np.array([[np.nan, 0.0]])])
def test_transform_refuses_other_logits(fitted: Any, bad: Any) -> None:
    with pytest.raises(RecordError, match="confidence_logits"):
        fitted.transform(bad)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_wrong_parents_are_named(estimator: Any) -> None:
    blocks = simulate(50, seed=2, gamma=2)
    for parent in ([1.0], [0.0, 1.0]):
        with pytest.raises(CalibrationValueError, match="parent_temperatures"):
            estimator(parent_temperatures=parent).fit(blocks.logits, blocks.accepted)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_numbers_beyond_what_may_be_published_are_refused_when_published(estimator: Any) -> None:
    z = np.full((2000, 1), 300.0)
    model = estimator(bounds=(0.05, 1000.0)).fit(z, np.repeat([1, 0], [1400, 600]))
    assert model.temperatures_[0] == pytest.approx(354.07, rel=1e-3)
    assert model.transform(z)[0, 0] == pytest.approx(0.7, abs=1e-3)
    with pytest.raises(CalibrationValueError, match=r"temperatures\[0\]"):
        model.calibration()


@pytest.mark.parametrize(
    "bad",
    [np.zeros(3), np.zeros((2, 0)), np.array([["1"]]), np.array([[np.inf]]), np.array([[1e39]])],
)
def test_wrong_logits_are_refused(bad: Any) -> None:
    with pytest.raises(RecordError, match="confidence_logits"):
        checked_logits(bad)


def test_no_rows_are_refused_with_a_status() -> None:
    with pytest.raises(FitRefusedError) as caught:
        checked_logits(np.zeros((0, 7)))
    assert caught.value.status == Refusal.NO_ROWS


def test_whole_numbers_are_logits_too() -> None:
    assert checked_logits([[1, 2]]).dtype == np.float64


@pytest.mark.parametrize("bad", [(0, 20), (2, 20), (0.5, 0.9), (1,), None, ("a", "b"), (1, 1e39)])
def test_wrong_bounds(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="bounds"):
        checked_bounds(bad)


def test_good_bounds() -> None:
    assert checked_bounds([0.1, 10]) == (0.1, 10.0)
    assert checked_bounds(PUBLISHABLE_BOUNDS) == (0.05, 20.0)


@pytest.mark.parametrize("bad", [-1, 0, 1.0, True, "3", None])
def test_wrong_counts(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="rows"):
        checked_count("rows", bad, 1)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), True, "1"])
def test_wrong_strengths(bad: Any) -> None:
    with pytest.raises(ConfigurationError, match="ridge"):
        checked_positive("ridge", bad)
    assert checked_positive("ridge", 0) == 0.0
