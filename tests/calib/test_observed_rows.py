from __future__ import annotations

import numpy as np
import pytest

from calib.errors import ConfigurationError, RecordError
from calib.observed_rows import ObservedRows
from calib.record_schema import Flag
from calib.records import AcceptanceRecords

EVERYTHING = slice(None)


def found(rows: ObservedRows, count: int) -> list[tuple[list[int], list[float]]]:
    return [
        (index.tolist(), [float(label) for label in labels])
        for index, labels in rows.positions(EVERYTHING, count)
    ]


def test_r36_observed_is_up_to_the_first_reject_and_never_beyond_what_was_verified() -> None:
    rows = ObservedRows.of_lengths([2, 1, 0], [2, 3, 0], (3, 3))
    assert found(rows, 3) == [([0, 1], [1.0, 1.0]), ([0, 1], [1.0, 0.0]), ([], [])]


def test_accepted_lengths_of_255_positions_do_not_wrap() -> None:
    full = np.array([254], dtype=np.uint8)
    rows = ObservedRows.of_lengths(full, full, (1, 254))
    assert [index.tolist() for index, _ in rows.positions(EVERYTHING, 254)] == [[0]] * 254


def test_a_matrix_is_observed_where_it_is_no_nan() -> None:
    rows = ObservedRows.of_matrix([[0.25, np.nan], [np.nan, 1.0]], (2, 2))
    assert found(rows, 2) == [([0], [0.25]), ([1], [1.0])]


def test_records_keep_out_what_may_not_teach() -> None:
    columns = {
        "confidence_logits": [[0.5, 0.5]] * 3,
        "verified": [2, 2, 2],
        "accepted": [0, 2, 1],
        "soft_labels": [[0.1, 0.2], [0.3, 0.4], [0.5, None]],
        "flags": [0, int(Flag.WARMUP), 0],
    }
    records = AcceptanceRecords.from_columns(2, columns)
    assert found(ObservedRows.of_records(records, "hard"), 2) == [([0, 2], [0, 1]), ([2], [0])]
    # c* of position 2 of the first row is known and still says nothing: it was not reached.
    soft = found(ObservedRows.of_records(records, "soft"), 2)
    assert [index for index, _ in soft] == [[0, 2], []]
    assert soft[0][1] == pytest.approx([0.1, 0.5])


def test_wrong_sources_are_named() -> None:
    columns = {"confidence_logits": [[0.5]], "verified": [1], "accepted": [1]}
    records = AcceptanceRecords.from_columns(1, columns)
    with pytest.raises(RecordError, match="soft_labels"):
        ObservedRows.of_records(records, "soft")
    with pytest.raises(ConfigurationError, match="labels"):
        ObservedRows.of_records(records, "half")  # type: ignore[arg-type]


def test_lengths_of_hard_labels_chunk_by_chunk_and_none_of_others() -> None:
    hard = ObservedRows.of_lengths([2, 1, 0], [2, 3, 0], (3, 3))
    assert hard.hard
    assert [list(each) for each in hard.lengths(EVERYTHING)] == [[2, 1, 0], [2, 2, 0]]
    assert [list(each) for each in hard.lengths(slice(1, 3))] == [[1, 0], [2, 0]]
    full = ObservedRows.of_lengths([2, 3], None, (2, 3))
    assert [list(each) for each in full.lengths(slice(0, 2))] == [[2, 3], [3, 3]]
    labels = ObservedRows.of_matrix([[0.25]], (1, 1))
    assert not labels.hard
    with pytest.raises(RecordError, match="without lengths"):
        labels.lengths(EVERYTHING)


def test_targets_are_lengths_or_labels() -> None:
    by_lengths = ObservedRows.of_targets([2, 0], [2, 1], (2, 2))
    by_labels = ObservedRows.of_targets([[1.0, 1.0], [0.0, np.nan]], None, (2, 2))
    assert found(by_lengths, 2) == found(by_labels, 2) == [([0, 1], [1.0, 0.0]), ([0], [1.0])]
    assert not by_lengths.soft
    assert not by_labels.soft
    assert ObservedRows.of_targets([[0.25, np.nan]], None, (1, 2)).soft
    for y, verified, field in (
        ([[1.0]], [1], "verified"),
        ([[1.0, 1.0]], None, "labels"),
        ([["a"]], None, "labels"),
        (None, None, "labels"),
        ([1, 1], None, "accepted"),
        ([2], None, "accepted"),
        ([0.5], None, "accepted"),
    ):
        with pytest.raises(RecordError, match=field):
            ObservedRows.of_targets(y, verified, (1, 1))
