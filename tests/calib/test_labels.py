from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import RecordError
from calib.labels import (
    LabelKind,
    conditional_labels,
    coverage,
    known_survival_mask,
    observed_mask,
    observed_share,
    survival_informed_mask,
    survival_labels,
)
from calib.records import AcceptanceRecords
from tests.calib.record_batches import lengths

NAN = float("nan")


def same(actual: Any, expected: Any) -> bool:
    return np.array_equal(actual, expected, equal_nan=True)


def test_r36_trimmed_positions_are_unobserved_not_zero() -> None:
    assert same(conditional_labels([2], [2], 5), [[1, 1, NAN, NAN, NAN]])
    assert same(survival_labels([2], [2], 5), [[1, 1, NAN, NAN, NAN]])
    assert observed_mask([2], [2], 5).tolist() == [[True, True, False, False, False]]
    # n = ℓ < γ: what would have followed is unknown.
    assert known_survival_mask([2], [2], 5).tolist() == [[True, True, False, False, False]]


def test_a_rejection_is_the_last_conditional_label() -> None:
    assert same(conditional_labels([4], [1], 5), [[1, 0, NAN, NAN, NAN]])
    assert same(survival_labels([4], [1], 5), [[1, 0, 0, 0, NAN]])
    # Known because of the outcome: not a mask to fit on.
    assert known_survival_mask([4], [1], 5).all()
    assert survival_informed_mask([4], [1], 5).tolist() == [[True, True, True, True, False]]


def test_nothing_verified_teaches_nothing() -> None:
    assert same(conditional_labels([0], [0], 3), [[NAN, NAN, NAN]])
    assert not known_survival_mask([0], [0], 3).any()
    assert coverage([0], [0], 3).tolist() == [0, 0, 0]


def test_everything_accepted_is_all_ones() -> None:
    assert conditional_labels([3], [3], 3).tolist() == [[1, 1, 1]]
    assert survival_labels([3], [3], 3).tolist() == [[1, 1, 1]]


def test_r37_coverage_is_not_the_rate() -> None:
    verified = [3] * 60 + [2] * 40
    accepted = [3] * 54 + [2] * 6 + [2] * 40
    assert coverage(verified, accepted, 3).tolist() == [1.0, 1.0, 0.6]
    labels = conditional_labels(verified, accepted, 3)[:, 2]
    assert np.nanmean(labels) == pytest.approx(0.90)
    assert np.count_nonzero(~np.isnan(labels)) == 60


def test_records_and_plain_lengths_agree() -> None:
    columns = lengths((3, 1), (2, 2), (0, 0), gamma=3)
    records = AcceptanceRecords.from_columns(3, columns)
    for function in (
        observed_mask,
        conditional_labels,
        survival_informed_mask,
        survival_labels,
        known_survival_mask,
        coverage,
        observed_share,
    ):
        plain = function(columns["verified"], columns["accepted"], 3)
        assert same(function(records), plain)


def test_dtypes_and_no_rows() -> None:
    assert conditional_labels([1], [1], 2).dtype == np.float32
    assert survival_labels([1], [1], 2).dtype == np.float32
    assert observed_mask([], [], 2).shape == (0, 2)
    assert np.isnan(coverage([], [], 2)).all()
    assert np.isnan(observed_share([], [], 2)).all()


def test_the_widest_block_does_not_wrap() -> None:
    full = np.array([254], dtype=np.uint8)
    assert observed_mask(full, full, 254).all()
    assert conditional_labels(full, full - 1, 254)[0, -2:].tolist() == [1, 0]


@pytest.mark.property
@given(
    st.integers(1, 6).flatmap(
        lambda gamma: st.tuples(
            st.just(gamma),
            st.lists(
                st.tuples(st.integers(0, gamma), st.integers(0, gamma)), min_size=1, max_size=8
            ),
        )
    )
)
def test_labels_follow_their_definitions(case: tuple[int, list[tuple[int, int]]]) -> None:
    gamma, pairs = case
    verified = [max(pair) for pair in pairs]
    accepted = [min(pair) for pair in pairs]
    observed = observed_mask(verified, accepted, gamma)
    conditional = conditional_labels(verified, accepted, gamma)
    survival = survival_labels(verified, accepted, gamma)
    known = known_survival_mask(verified, accepted, gamma)
    for row, (length, count) in enumerate(zip(verified, accepted, strict=True)):
        for k in range(1, gamma + 1):
            seen = k <= count + 1 and k <= length
            assert observed[row, k - 1] == seen
            assert same(conditional[row, k - 1], float(k <= count) if seen else NAN)
            assert same(survival[row, k - 1], float(count >= k) if k <= length else NAN)
            assert known[row, k - 1] == (k <= length or count < length)
    # A conditional label is a survival label on the rows that got that far.
    assert same(conditional[observed], survival[observed])
    assert (observed_share(verified, accepted, gamma) <= coverage(verified, accepted, gamma)).all()


@pytest.mark.parametrize(
    ("verified", "accepted", "gamma", "field"),
    [
        ([3], [1], 2, "verified"),
        ([2], [3], 2, "accepted"),
        ([2], [-1], 2, "accepted"),
        ([2.0], [1], 2, "verified"),
        ([2], [True], 2, "accepted"),
        ([2, 2], [1], 2, "accepted"),
        ([[2]], [[1]], 2, "verified"),
        ([2], None, 2, "accepted"),
        ([2], [1], None, "gamma"),
    ],
)
def test_lengths_that_mean_nothing_are_refused(
    verified: Any, accepted: Any, gamma: Any, field: str
) -> None:
    with pytest.raises(RecordError) as caught:
        observed_mask(verified, accepted, gamma)
    assert caught.value.field == field


def test_label_kinds() -> None:
    assert [str(kind) for kind in LabelKind] == ["hard", "soft_full", "soft_truncated"]
