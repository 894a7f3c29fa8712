"""An automatic promotion moves served numbers only so far."""

from __future__ import annotations

import json

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import ConfigurationError
from calib.statuses import PositionStatus, Refusal
from monitoring.promotion_gate_guards import check_change

LOGITS = np.random.default_rng(0).normal(1.0, 1.5, (2000, 2))
OK = (PositionStatus.OK,) * 2
CHAMPION = Calibration.from_temperatures([1.5, 1.5], gamma=2)


def test_a_normal_change_passes() -> None:
    challenger = Calibration.from_temperatures([1.9, 1.7], gamma=2)
    found = check_change(CHAMPION, challenger, LOGITS)
    assert found.refusal is None
    moved = challenger.survival(LOGITS).astype(float) - CHAMPION.survival(LOGITS)
    expected = np.abs(moved).mean(axis=0)
    assert found.survival_change == pytest.approx(expected.tolist())
    assert json.dumps(found.to_dict())


@pytest.mark.parametrize(
    ("challenger", "words"),
    [
        (Calibration.from_temperatures([1.5, 6.0], gamma=2), "temperature at position 2"),
        (Calibration.from_temperatures([0.15, 1.0], gamma=2), "temperature at position 1"),
        (
            Calibration(2, (1.0, 1.0), (0.1, 1.0), (0.0, 0.0), position_statuses=OK),
            "slope at position 1",
        ),
        (
            Calibration(2, (1.0, 1.0), (1.0, 1.0), (0.0, -2.5), position_statuses=OK),
            "intercept at position 2 is -2.5",
        ),
    ],
)
def test_numbers_out_of_bounds(challenger: Calibration, words: str) -> None:
    found = check_change(CHAMPION, challenger, LOGITS)
    assert found.refusal is Refusal.UNBOUNDED_CHANGE
    assert words in found.reason


def test_survival_that_moves_too_far() -> None:
    champion = Calibration.from_temperatures([0.3, 0.3], gamma=2)
    far = Calibration.from_temperatures([4.0, 4.0], gamma=2)
    found = check_change(champion, far, LOGITS)
    assert found.refusal is Refusal.UNBOUNDED_CHANGE
    assert max(found.survival_change) > 0.15
    assert "moves by" in found.reason
    assert check_change(champion, far, LOGITS, maximum_survival_change=0.6).refusal is None
    # Off identity more is allowed: raw logits may be that wrong.
    assert check_change(Calibration.identity(2), far, LOGITS).refusal is None


def test_the_affine_form_may_not_move_too_far_either() -> None:
    shifted = Calibration(2, (1.5, 1.5), (1 / 1.5, 1 / 1.5), (-1.5, -1.5), position_statuses=OK)
    found = check_change(CHAMPION, shifted, LOGITS)
    assert found.refusal is Refusal.UNBOUNDED_CHANGE
    before, after = CHAMPION.survival(LOGITS), shifted.survival(LOGITS, form="affine")
    expected = np.abs(after.astype(float) - before).mean(axis=0)
    assert found.survival_change == pytest.approx(expected.tolist())


def test_other_gamma_and_no_rows() -> None:
    longer = Calibration.from_temperatures([1.0] * 3, gamma=3)
    assert check_change(CHAMPION, longer, LOGITS).refusal is Refusal.GAMMA_MISMATCH
    assert check_change(CHAMPION, CHAMPION, LOGITS[:0]).refusal is Refusal.NO_ROWS
    with pytest.raises(ConfigurationError, match="maximum_survival_change"):
        check_change(CHAMPION, CHAMPION, LOGITS, maximum_survival_change=0.0)
