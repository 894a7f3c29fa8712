from __future__ import annotations

import math

import numpy as np
import pytest

from calib.records import AcceptanceRecords
from monitoring.recalibration_choice import RowLosses, _difference, choose_method, row_losses
from monitoring.recalibration_methods import MethodRules
from tests.support.leaky_generator import simulate_leaky


def test_losses_count_only_where_the_position_was_verified() -> None:
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.zeros((3, 2), dtype=np.float32),
            "verified": [2, 1, 0],
            "accepted": [1, 1, 0],
        },
    )
    survival = np.array([[0.8, 0.4], [0.5, 0.1], [0.9, 0.9]])
    found = row_losses(records, survival)
    assert found.labels.tolist() == [2, 1, 0]
    expected = [-math.log(0.8) - math.log(0.6), -math.log(0.5), 0.0]
    assert found.loss == pytest.approx(expected)
    assert found.mean == pytest.approx(sum(expected) / 3)
    certain = row_losses(records, np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert np.isfinite(certain.loss).all()


def test_difference_takes_rows_of_a_prompt_as_one_piece_of_luck() -> None:
    labels = np.array([2, 1, 1, 2])
    one, other = RowLosses(np.array([1.0, 2.0, 3.0, 4.0]), labels), RowLosses(np.ones(4), labels)
    mean, error = _difference(one, other, np.array([0, 0, 1, 1]))
    assert mean == pytest.approx((0 + 1 + 2 + 3) / 6)
    # By cluster: sums 1 and 5 over 3 labels each, so residuals are 1 - 3 and 5 - 3.
    assert error == pytest.approx(math.sqrt((4 + 4) * 2 / 1) / 6)
    assert _difference(one, other, np.zeros(4, dtype=np.intp))[1] == math.inf


def test_where_a_temperature_is_exactly_right_the_simplest_wins() -> None:
    records = simulate_leaky(6000, 4).records()
    choice = choose_method(records, 1.0, MethodRules())
    assert (choice.method, choice.segments) == ("temperature", False)
    named = {entry["method"]: entry for entry in choice.evidence["candidates"]}
    assert set(named) == {"temperature", "sts", "affine", "survival"}
    assert named["temperature"]["above_best"] <= named["temperature"]["standard_error"]
    assert choice.evidence["scored_rows"] == 3000
