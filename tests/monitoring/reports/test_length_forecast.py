from __future__ import annotations

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from monitoring.reports.length_forecast import length_forecast
from tests.support.telemetry import TEMPERATURES, synthetic_columns, synthetic_records


def logit(share: float) -> float:
    return float(np.log(share / (1.0 - share)))


def test_by_hand_within_what_was_verified() -> None:
    """c = .8 everywhere: 1 + .8 + .64 of two verified, 1 + .8 of one; 3, 1 and 2 come."""
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.full((3, 2), logit(0.8), dtype=np.float32),
            "verified": np.array([2, 2, 1]),
            "accepted": np.array([2, 0, 1]),
        },
    )
    raw = Calibration.identity(2)
    found = length_forecast(records, raw, raw)
    assert found.realised == pytest.approx(2.0)
    assert found.raw.predicted == pytest.approx((2.44 + 2.44 + 1.8) / 3)
    assert found.raw.error == pytest.approx(found.raw.predicted - 2.0)
    assert found.calibrated == found.raw
    assert found.groups == ()  # fewer rows than a group needs


def test_the_true_temperatures_forecast_right_and_raw_confidence_does_not() -> None:
    records = synthetic_records(8000, gamma=4, prompts=8000, seed=5)
    truth = Calibration.from_temperatures(TEMPERATURES[:4], gamma=4)
    found = length_forecast(records, Calibration.from_temperatures([0.5] * 4, gamma=4), truth)
    assert found.calibrated.error_low is not None
    assert found.calibrated.error_high is not None
    assert found.calibrated.error_low < 0.0 < found.calibrated.error_high
    assert found.raw.error_low is not None
    assert found.raw.error_low > 0.0
    assert len(found.groups) == 10
    assert sum(group.rows for group in found.groups) == found.rows == 8000
    inside = [
        group.realised_low <= group.calibrated <= group.realised_high
        for group in found.groups
        if group.realised_low is not None and group.realised_high is not None
    ]
    assert sum(inside) >= 8
    assert [g.calibrated for g in found.groups] == sorted(g.calibrated for g in found.groups)


def test_rows_of_one_prompt_count_together() -> None:
    """Each row thirty times over is no more evidence than once."""
    columns = synthetic_columns(300, gamma=3, prompts=300)
    columns["prompt"] = np.array([f"p{i}" for i in range(300)], dtype=object)
    model = Calibration.identity(3)
    once = length_forecast(AcceptanceRecords.from_columns(3, columns), model, model).raw
    many = {name: np.repeat(values, 30, axis=0) for name, values in columns.items()}
    often = length_forecast(AcceptanceRecords.from_columns(3, many), model, model).raw
    assert often.error == pytest.approx(once.error)
    assert often.error_low == pytest.approx(once.error_low)


@pytest.mark.parametrize("rows", [0, 1])
def test_too_few_rows_give_no_interval(rows: int) -> None:
    model = Calibration.identity(3)
    found = length_forecast(synthetic_records(40, gamma=3).select(slice(0, rows)), model, model)
    assert found.rows == rows
    assert found.raw.error_low is None
    assert (found.realised is None) == (rows == 0)
    assert found.to_dict()["groups"] == []
