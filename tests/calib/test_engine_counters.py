from __future__ import annotations

from typing import Any

import pytest

from calib.engine_counters import (
    EngineCounters,
    LengthMeasurement,
    check_reported_length,
    measure_lengths,
    pooled_accepted_length,
)
from calib.errors import RecordError


def test_r44_speculation_off_is_not_measured() -> None:
    assert measure_lengths({1: 500}, 7) == LengthMeasurement(False, 500, None)
    assert measure_lengths({1: 500}, 7, proposed_drafts=0) == LengthMeasurement(False, 500, None)
    assert measure_lengths({}, 7) == LengthMeasurement(False, 0, None)


def test_a_drafter_that_never_hits_is_measured_where_drafts_are_known() -> None:
    assert measure_lengths({1: 500}, 7, proposed_drafts=3500) == LengthMeasurement(True, 500, 1.0)
    assert measure_lengths({1: 2, 4: 2}, 7) == LengthMeasurement(True, 4, 2.5)


@pytest.mark.parametrize(
    ("histogram", "drafts"),
    [({0: 5}, None), ({9: 5}, None), ({1: -1}, None), ({True: 5}, None), ({3: 5}, 0), ({1: 5}, -1)],
)
def test_impossible_histograms_are_refused(histogram: dict[int, int], drafts: int | None) -> None:
    with pytest.raises(RecordError):
        measure_lengths(histogram, 7, drafts)


def test_r45_a_length_that_its_counters_deny_is_refused() -> None:
    with pytest.raises(RecordError, match=r"reported_length: got 2\.0; the counters imply 1\.5"):
        check_reported_length(200, [60, 30, 10], 2.0)
    assert check_reported_length(200, [120, 60, 20], 2.0) == 2.0
    assert check_reported_length(200, [60, 30, 10], 1.5) == 1.5


def test_rounding_of_a_reported_length_passes() -> None:
    assert check_reported_length(3, [1, 0], 1.33) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("drafts", "accepted", "length"),
    [
        (0, [0, 0], 1.0),
        (-1, [0], 1.0),
        (10, [11, 0], 2.1),
        (10, [5, 6], 2.1),
        (10, [5, -1], 1.4),
        (10, [5, 1.0], 1.6),
        (10, [5, 1], float("nan")),
    ],
)
def test_counters_that_contradict_themselves_are_refused(
    drafts: int, accepted: Any, length: float
) -> None:
    with pytest.raises(RecordError):
        check_reported_length(drafts, accepted, length)


def test_r47_missing_counters_are_left_out_not_counted_as_zero() -> None:
    pooled = pooled_accepted_length(
        [EngineCounters("A", 1, 1), EngineCounters("B", 9, 45), EngineCounters("C", None, None)]
    )
    assert pooled.accepted_length == 4.6
    assert pooled.missing == ("C",)
    assert (pooled.verifies, pooled.emitted_tokens) == (10, 46)


def test_nothing_reported_is_no_length() -> None:
    assert pooled_accepted_length([]).accepted_length is None
    assert pooled_accepted_length([EngineCounters("A", 0, 0)]).accepted_length is None


def test_fewer_tokens_than_verifications_are_refused() -> None:
    with pytest.raises(RecordError, match="engine A"):
        pooled_accepted_length([EngineCounters("A", 5, 4)])
    with pytest.raises(RecordError, match="verifies"):
        pooled_accepted_length([EngineCounters("A", -5, 4)])
