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
    rows = ObservedRows.of_lengths(np.array([2, 3, 0]), np.array([2, 1, 0]))
    assert found(rows, 3) == [([0, 1], [1.0, 1.0]), ([0, 1], [1.0, 0.0]), ([], [])]


def test_accepted_lengths_of_255_positions_do_not_wrap() -> None:
    full = np.array([254], dtype=np.uint8)
    rows = ObservedRows.of_lengths(full, full)
    assert [index.tolist() for index, _ in rows.positions(EVERYTHING, 254)] == [[0]] * 254


def test_a_matrix_is_observed_where_it_is_no_nan() -> None:
    rows = ObservedRows.of_matrix(np.array([[0.25, np.nan], [np.nan, 1.0]]))
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


def test_lengths_of_hard_labels_and_nothing_of_others() -> None:
    hard = ObservedRows.of_lengths(np.array([2, 3, 0]), np.array([2, 1, 0])).hard_lengths
    assert hard is not None
    assert [list(each) for each in hard] == [[2, 1, 0], [2, 2, 0]]
    assert ObservedRows.of_matrix(np.array([[0.25]])).hard_lengths is None
