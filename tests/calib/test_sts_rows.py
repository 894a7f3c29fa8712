from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.errors import RecordError
from calib.labels import survival_labels
from calib.sts_rows import SurvivalWalk, survival_targets

NAN = float("nan")


def test_accepted_lengths_become_survival_labels() -> None:
    lengths, labels = survival_targets([0, 2, 3], None, 3, 3)
    assert lengths is None
    assert labels.dtype == np.uint8
    assert labels.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]


def test_verified_lengths_are_kept_only_where_they_matter() -> None:
    lengths, _ = survival_targets([0, 2], [1, 3], 2, 3)
    assert lengths is not None
    assert lengths.tolist() == [1, 3]
    assert survival_targets([0, 2], [3, 3], 2, 3)[0] is None


def test_labels_with_nan_say_themselves_how_far_a_row_was_verified() -> None:
    verified, accepted = [1, 3, 0], [1, 1, 0]
    lengths, labels = survival_targets(survival_labels(verified, accepted, 3), None, 3, 3)
    assert lengths is not None
    assert lengths.tolist() == verified
    assert labels.dtype == np.uint8
    assert labels[1].tolist() == [1, 0, 0]
    both, _ = survival_targets([[1.0, NAN], [1.0, 0.0]], [2, 1], 2, 2)
    assert both is not None
    assert both.tolist() == [1, 1]


def test_soft_labels_stay_soft() -> None:
    _, labels = survival_targets([[0.5, 0.25]], None, 1, 2)
    assert labels.dtype == np.float64


@pytest.mark.parametrize(
    ("y", "verified", "field"),
    [
        (None, None, "y"),
        ([1, 2], None, "y"),
        ([1, 2, 4], None, "accepted"),
        ([1.0, 2.0, 3.0], None, "accepted"),
        ([1, 2, 3], [1, 2], "accepted"),
        ([1, 2, 3], [1, 1, 3], "accepted"),
        ([1, 2, 3], [1, 2, 4], "verified"),
        ([[1, 1]] * 3, None, "y"),
        ([[1, 1, 2]] * 3, None, "y"),
        ([[1.0, -0.5, 0.0]] * 3, None, "y"),
        ([[1.0, NAN, 0.0]] * 3, None, "y"),
        ([["1", "1", "1"]] * 3, None, "y"),
        ([[1, 1, 1]] * 3, [1, 2, 9], "verified"),
    ],
)
def test_wrong_labels_are_named(y: Any, verified: Any, field: str) -> None:
    with pytest.raises(RecordError) as caught:
        survival_targets(y, verified, 3, 3)
    assert caught.value.field == field


def test_a_row_informs_a_position_only_if_it_was_verified_that_far() -> None:
    logits = np.arange(12, dtype=np.float32).reshape(4, 3)
    lengths, labels = survival_targets([0, 1, 2, 3], [3, 1, 2, 3], 4, 3)
    walk = SurvivalWalk(logits, labels, lengths, 15)
    rows = []
    for position in range(3):
        calibrated, plain = walk.objectives(position)
        assert calibrated.rows == plain.rows
        rows.append(calibrated.rows)
        walk.continue_with(2.0)
    assert rows == [4, 3, 2]


def test_survival_follows_the_rows_that_are_left() -> None:
    logits = np.array([[1.0, 0.5], [2.0, 0.5], [3.0, 0.5]], dtype=np.float32)
    lengths, labels = survival_targets([0, 1, 2], [1, 2, 2], 3, 2)
    walk = SurvivalWalk(logits, labels, lengths, 15)
    walk.objectives(0)
    walk.continue_with(2.0)
    calibrated, plain = walk.objectives(1)
    z = np.array([2.0, 3.0])
    expected = 1 / (1 + np.exp(-z / 2)) / (1 + np.exp(-0.5 / 4))
    assert calibrated.survive(4.0) == pytest.approx(expected, abs=1e-6)
    assert plain.survive(1.0) == pytest.approx(1 / (1 + np.exp(-z)) / (1 + np.exp(-0.5)), abs=1e-6)
