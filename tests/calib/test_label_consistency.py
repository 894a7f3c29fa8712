"""Soft labels against acceptance: the reported case, selection of rows, error rate and power."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from calib.errors import ConfigurationError, FitRefusedError
from calib.label_consistency import (
    LabelConsistency,
    _log_evidence,
    check_label_consistency,
)
from calib.records import AcceptanceRecords
from calib.statuses import Refusal

Array = NDArray[Any]


def records(soft: Array, verified: Array, accepted: Array, **columns: Any) -> AcceptanceRecords:
    rows, gamma = soft.shape
    return AcceptanceRecords.from_columns(
        gamma,
        {
            "confidence_logits": np.zeros((rows, gamma)),
            "verified": verified,
            "accepted": accepted,
            "soft_labels": soft,
        }
        | columns,
    )


def one_position(soft: Array, accepted: Array, **options: Any) -> LabelConsistency:
    data = records(soft[:, None], np.ones(len(soft), int), accepted.astype(int))
    return check_label_consistency(data, **options)


def test_r34_soft_labels_that_contradict_acceptance() -> None:
    accepted = np.arange(5000) < 3050  # .61
    found = one_position(np.full(5000, 0.82), accepted)
    [position] = found.positions
    assert found.inconsistent
    assert found.refusal is Refusal.LABEL_INCONSISTENT
    assert position.gap == pytest.approx(-0.21, abs=1e-6)
    # −1050/√(5000·.82·.18) = −38.65; in the standard error of the observed rate, −30.4.
    assert position.z == pytest.approx(-38.65, abs=0.01)
    assert position.gap / np.sqrt(0.61 * 0.39 / 5000) == pytest.approx(-30.4, abs=0.1)
    with pytest.raises(FitRefusedError, match="label_inconsistent: position 1: mean soft label"):
        found.require()


def test_consistent_labels_pass() -> None:
    rng = np.random.default_rng(0)
    soft = rng.random((20_000, 3))
    accepted = np.cumprod(rng.random(soft.shape) < soft, axis=1).sum(1)
    found = check_label_consistency(records(soft, np.full(20_000, 3), accepted))
    assert not found.inconsistent
    assert found.refusal is None
    found.require()
    assert all(abs(position.z or 9.0) < 4.0 for position in found.positions)
    assert [position.position for position in found.positions] == [1, 2, 3]


def test_only_observed_positions_are_compared() -> None:
    """γ = 3; ℓ = 2, n = 1 observes k ≤ 2; ℓ = 1, n = 1 observes k = 1; ℓ = 0 nothing."""
    soft = np.array([[0.5, 0.25, 0.9], [0.5, 0.9, 0.9], [0.9, 0.9, 0.9]])
    found = check_label_consistency(records(soft, np.array([2, 1, 0]), np.array([1, 1, 0])))
    assert [position.rows for position in found.positions] == [2, 1, 0]
    assert found.positions[0].gap == pytest.approx(0.5)
    assert found.positions[0].z == pytest.approx(1.0 / np.sqrt(0.5))
    assert found.positions[1].gap == pytest.approx(-0.25)
    empty = found.positions[2]
    assert (empty.gap, empty.z, empty.log_evidence, empty.inconsistent) == (None, None, 0.0, False)
    assert found.rows == 3


def test_unknown_labels_and_unusable_rows_are_left_out() -> None:
    soft = np.array([[0.5], [np.nan], [0.5]])
    data = records(
        soft, np.ones(3, int), np.ones(3, int), anticipating=np.array([False, False, True])
    )
    assert check_label_consistency(data).rows == 1


def test_records_without_soft_labels_compare_nothing() -> None:
    data = AcceptanceRecords.from_columns(
        2, {"confidence_logits": np.zeros((4, 2)), "verified": [2] * 4, "accepted": [0] * 4}
    )
    found = check_label_consistency(data)
    assert (found.rows, found.inconsistent, len(found.positions)) == (0, False, 2)
    assert "no row" in found.reason


def test_greedy_labels_allow_no_exception() -> None:
    soft = np.array([1.0, 0.0] * 50_000)
    accepted = soft.astype(bool)
    assert not one_position(soft, accepted).inconsistent
    accepted[77] = True  # one row in 100,000
    found = one_position(soft, accepted)
    assert found.inconsistent
    assert found.positions[0].z is None
    assert found.positions[0].impossible == 1
    assert "no variance, 1 impossible" in found.reason


def test_a_rounded_certainty_among_soft_labels_is_no_proof() -> None:
    """c* = 1 − 1e-9 is 1 in float32: a single rejection there must not block a fit."""
    rng = np.random.default_rng(1)
    soft = np.concatenate([rng.random(5000), np.ones(5000)])
    accepted = rng.random(10_000) < soft
    accepted[-1] = False
    found = one_position(soft, accepted)
    assert found.positions[0].impossible == 1
    assert not found.inconsistent


def test_a_significant_gap_below_the_floor_is_tolerated() -> None:
    """A million rows .705 against .700: z is 10.9 and nobody should be woken."""
    accepted = np.arange(1_000_000) < 705_000
    found = one_position(np.full(1_000_000, 0.7), accepted)
    assert found.positions[0].z == pytest.approx(10.9, abs=0.05)
    assert not found.inconsistent


def test_one_bad_position_is_enough() -> None:
    rng = np.random.default_rng(2)
    soft = np.full((8000, 4), 0.9)
    truth = np.array([0.9, 0.9, 0.6, 0.9])
    accepted = np.cumprod(rng.random(soft.shape) < truth, axis=1).sum(1)
    found = check_label_consistency(records(soft, np.full(8000, 4), accepted))
    assert [position.inconsistent for position in found.positions] == [False, False, True, False]


def test_folding_into_cells_only_lowers_the_evidence() -> None:
    rng = np.random.default_rng(3)
    soft = rng.beta(2.0, 1.0, 3000)
    accepted = rng.random(3000) < np.clip(soft - 0.1, 0.0, 1.0)
    exact = []
    for bet in 0.01 * 2.0 ** np.arange(11):
        for sign in (1, -1):
            nearest = np.minimum(soft + 0.01, 1.0) if sign > 0 else np.maximum(soft - 0.01, 0.0)
            denominator = np.log1p(nearest * np.expm1(sign * bet)).sum()
            exact.append(sign * bet * accepted.sum() - denominator)
    expected = np.logaddexp.reduce(exact) - np.log(len(exact))
    found = _log_evidence(soft, accepted, 0.01)
    assert found <= expected
    assert found == pytest.approx(expected, abs=0.02)


def false_alarms(shift: float, streams: int = 600, error_rate: float = 0.2) -> int:
    """Streams ever called inconsistent over 40 looks at up to 4,000 rows."""
    alarms = 0
    looks = np.unique(np.geomspace(5, 4000, 40).astype(int))
    for seed in range(streams):
        rng = np.random.default_rng([seed, round(1000 * (shift + 1))])
        soft = rng.beta(3.0, 1.0, 4000) * 0.96 + 0.02
        accepted = rng.random(4000) < soft + shift
        threshold = np.log(1.0 / error_rate)
        alarms += any(_log_evidence(soft[:n], accepted[:n], 0.01) >= threshold for n in looks)
    return alarms


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.01, -0.01])
def test_labels_within_the_floor_are_rarely_ever_refused(shift: float) -> None:
    """P(ever) ≤ 20 %: 600 streams give at most 120 + 3·√(600·.2·.8) = 149."""
    assert false_alarms(shift) <= 149


@pytest.mark.statistical
@pytest.mark.parametrize(("gap", "rows"), [(-0.2, 400), (0.05, 6000), (-0.03, 24_000)])
def test_real_gaps_are_found(gap: float, rows: int) -> None:
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        soft = rng.beta(3.0, 1.0, rows) * 0.7 + 0.22
        found += one_position(soft, rng.random(rows) < soft + gap).inconsistent
    assert found >= 38


def test_the_threshold_is_shared_by_the_positions() -> None:
    soft = np.full((10, 5), 0.5)
    found = check_label_consistency(
        records(soft, np.full(10, 5), np.zeros(10, int)), error_rate=0.01
    )
    assert found.log_threshold == pytest.approx(np.log(500.0))


def test_result_is_plain_json() -> None:
    found = one_position(np.array([1.0, 1.0]), np.array([True, False]))
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["inconsistent"] is True
    assert plain["positions"][0]["z"] is None


@pytest.mark.parametrize(
    "options", [{"effect_floor": -0.1}, {"effect_floor": 1.0}, {"error_rate": 0.0}]
)
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        one_position(np.array([0.5]), np.array([True]), **options)
