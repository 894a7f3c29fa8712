"""Forgetful means by hand, and that they come back from bytes and do not depend on batches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from monitoring.detectors.observations import Observations
from monitoring.residual_means import HALF_LIFE_ROWS, ResidualMeans

CODES = np.array([0, 1, 0], dtype=np.intp)
NAMES = ("a", "late")


def observed() -> Observations:
    conditional = np.array([[0.8, 0.5], [0.5, 0.5], [0.9, 0.2]], np.float32)
    verified, accepted = np.array([2, 1, 0]), np.array([1, 0, 0])
    return Observations(conditional, verified, accepted, np.cumprod(conditional, axis=1))


def test_means_by_hand() -> None:
    found = ResidualMeans().add(observed(), CODES, NAMES, {"a": 1}, "(other)")
    old, new = 0.5 ** (2 / HALF_LIFE_ROWS), 0.5 ** (1 / HALF_LIFE_ROWS)
    # Row 1: accepted, rejected. Row 2: rejected at 1 of 1. Row 3 verified nothing.
    first = (old * 0.2 - new * 0.5) / (old + new)
    assert found.of_position(1) == pytest.approx(first, rel=1e-5)
    assert found.of_position(2) == pytest.approx(-0.5)
    pooled = (old * (0.2 - 0.5) - new * 0.5) / (2 * old + new)
    assert found.pooled == pytest.approx(pooled, rel=1e-5)
    assert found.of_segment("a") == pytest.approx((0.2 - 0.5) / 2, rel=1e-5)
    assert found.of_segment("(other)") == pytest.approx(-0.5)
    assert found.of_segment("late") is None
    survival = (old * (1 - 0.8 - 0.4) / 2 + new * (0 - 0.5) / 2) / (old + new + 1.0)
    assert found.of_survival == pytest.approx(survival, rel=1e-5)


def test_before_the_first_row_nothing_is_known() -> None:
    empty = ResidualMeans()
    assert (empty.pooled, empty.of_survival, empty.of_position(3)) == (None, None, None)
    assert ResidualMeans.from_dict(json.loads(json.dumps(empty.to_dict()))) == empty
    nothing = observed().select(slice(0, 0))
    assert empty.add(nothing, CODES[:0], NAMES, {}, "(other)") is empty


def test_batches_do_not_matter_and_bytes_keep_every_sum() -> None:
    whole = ResidualMeans().add(observed(), CODES, NAMES, {"a": 1}, "(other)")
    parts = ResidualMeans()
    for row in range(3):
        part = slice(row, row + 1)
        parts = parts.add(observed().select(part), CODES[part], NAMES, {"a": 1}, "(other)")
    assert np.array(parts.positions) == pytest.approx(np.array(whole.positions), rel=1e-5)
    assert parts.of_segment("a") == pytest.approx(whole.of_segment("a"), rel=1e-5)
    assert ResidualMeans.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
