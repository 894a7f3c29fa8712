from __future__ import annotations

import numpy as np

from calib.records import AcceptanceRecords
from monitoring.drift_streams import segment_names
from monitoring.reports.segments import (
    MAXIMUM_VALUES,
    OTHER,
    UNKNOWN,
    segment_rows,
)
from tests.support.telemetry import synthetic_records


def records(rows: int, **columns: object) -> AcceptanceRecords:
    required = {
        "confidence_logits": np.zeros((rows, 1)),
        "verified": [1] * rows,
        "accepted": [0] * rows,
    }
    return AcceptanceRecords.from_columns(1, required | columns)


def test_slices_by_each_tag_and_by_both() -> None:
    segments = segment_rows(synthetic_records(2000))
    names = [segment.name for segment in segments]
    assert names[:6] == [
        "domain=chat",
        "domain=code",
        "domain=math",
        "sampling_temperature=0",
        "sampling_temperature=0.5-0.85",
        "sampling_temperature=0.85-1.15",
    ]
    assert names[6] == "domain=chat, sampling_temperature=0"
    assert len(names) == 15
    for part in (segments[:3], segments[3:6], segments[6:]):
        rows = np.concatenate([segment.rows for segment in part])
        assert np.array_equal(np.sort(rows), np.arange(2000))


def test_unknown_cells_are_a_value_of_their_own_and_come_last() -> None:
    domain = ["b", None, "a", None]
    segments = segment_rows(records(4, domain=domain, sampling_temperature=[0.6, None, 0.6, None]))
    assert [segment.name for segment in segments[:3]] == [
        "domain=a",
        "domain=b",
        f"domain={UNKNOWN}",
    ]
    assert segments[2].rows.tolist() == [1, 3]


def test_a_tag_with_one_value_or_none_makes_no_slices() -> None:
    assert segment_rows(records(3)) == []
    assert segment_rows(records(3, domain=["a"] * 3, sampling_temperature=[1.0] * 3)) == []


def test_sampling_temperatures_fall_into_the_buckets_of_the_loop() -> None:
    values = [1.3, 0.0, 0.6, 0.85, 0.7, 1.0, 0.2]
    segments = segment_rows(records(7, sampling_temperature=values))
    buckets = ("0", "0-0.5", "0.5-0.85", "0.85-1.15", "over 1.15")
    assert [segment.name for segment in segments] == [
        f"sampling_temperature={bucket}" for bucket in buckets
    ]
    assert segments[2].rows.tolist() == [2, 3, 4]
    tested = {name for name, _ in segment_names(records(7, sampling_temperature=values))[1]}
    assert tested == {segment.name for segment in segments}


def test_the_rarest_of_many_domains_share_a_slice() -> None:
    domain = [f"d{index:02d}" for index in range(40) for _ in range(1 + (index < 11))]
    segments = segment_rows(records(len(domain), domain=domain))
    assert len(segments) == MAXIMUM_VALUES
    assert segments[-1].name == f"domain={OTHER}"
    assert len(segments[-1].rows) == 29
