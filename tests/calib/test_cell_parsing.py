from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.cell_parsing import parse_column, refused_texts
from calib.record_schema import COLUMN_BY_NAME, MAX_TEXT_LENGTH

LOGITS = COLUMN_BY_NAME["confidence_logits"]
SOFT = COLUMN_BY_NAME["soft_labels"]
VERIFIED = COLUMN_BY_NAME["verified"]
STEP = COLUMN_BY_NAME["step"]
EXPLORED = COLUMN_BY_NAME["explored"]
DOMAIN = COLUMN_BY_NAME["domain"]


def rows_at_fault(column: Any, sent: Any, gamma: int = 2) -> list[int | None]:
    return [fault.row for fault in parse_column(column, sent, gamma).faults]


def test_lists_become_wide_arrays() -> None:
    parsed = parse_column(LOGITS, [[1, 2.5], [-3, 0.0]], 2)
    assert parsed.faults == []
    assert parsed.values is not None
    assert parsed.values.dtype == np.float64
    assert parsed.values.tolist() == [[1.0, 2.5], [-3.0, 0.0]]


def test_null_becomes_the_columns_unknown_value() -> None:
    step = parse_column(STEP, [3, None], 2).values
    assert step is not None
    assert step.tolist() == [3, -1]
    soft = parse_column(SOFT, [None, [None, 0.5]], 2).values
    assert soft is not None
    assert np.array_equal(soft, [[np.nan, np.nan], [np.nan, 0.5]], equal_nan=True)


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        (VERIFIED, True),
        (VERIFIED, 2.0),
        (VERIFIED, "2"),
        (VERIFIED, None),
        (VERIFIED, 2**64),
        (VERIFIED, np.True_),
        (VERIFIED, 1 + 0j),
        (EXPLORED, 1),
        (EXPLORED, "true"),
        (DOMAIN, 3),
        (DOMAIN, b"code"),
    ],
)
def test_one_cell_of_another_type_faults_its_row_only(column: Any, cell: Any) -> None:
    good: Any = {VERIFIED: 1, EXPLORED: False, DOMAIN: "chat"}[column]
    parsed = parse_column(column, [good, cell, good], 2)
    assert [fault.row for fault in parsed.faults] == [1]
    assert parsed.values is not None
    assert parsed.values[[0, 2]].tolist() == [good, good]
    assert "give" in parsed.faults[0].remedy


@pytest.mark.parametrize("cell", [True, "1.0", None, 10**400, [1.0], np.False_])
def test_one_logit_of_another_type_names_row_and_position(cell: Any) -> None:
    parsed = parse_column(LOGITS, [[1.0, 2.0], [3.0, cell]], 2)
    assert [fault.row for fault in parsed.faults] == [1]
    assert parsed.faults[0].remedy.startswith("position 2: give a finite number")


def test_a_number_too_long_to_print_is_described() -> None:
    fault = parse_column(VERIFIED, [1, -(10**5000)], 2).faults[0]
    assert (fault.row, fault.value) == (1, "a whole number of 16610 bits")


def test_several_kinds_of_fault_in_one_column_all_stand() -> None:
    cells = [[1.0, True], [10**400, 1.0], [1.0], [1.0, 2.0]]
    assert sorted(rows_at_fault(LOGITS, cells), key=str) == [0, 1, 2]


def test_numpy_scalars_in_lists_are_numbers() -> None:
    parsed = parse_column(VERIFIED, [np.int16(1), 2], 2)
    assert parsed.faults == []
    assert parsed.values is not None
    assert parsed.values.tolist() == [1, 2]


@pytest.mark.parametrize(
    "row",
    [
        *([1.0], [1.0, 2.0, 3.0], [], "ab", 1.0, None, {"a": 1}),
        *(np.zeros(3), np.zeros(0), np.zeros((2, 2)), np.array(1.0)),
    ],
    ids=repr,
)
def test_a_row_of_another_width_faults_that_row(row: Any) -> None:
    assert set(rows_at_fault(LOGITS, [[1.0, 2.0], row])) == {1}


def test_rows_may_be_tuples_or_arrays() -> None:
    parsed = parse_column(LOGITS, [(1.0, 2.0), np.array([3.0, 4.0], dtype=np.float32)], 2)
    assert parsed.faults == []
    assert parsed.values is not None
    assert parsed.values.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("column", "sent"),
    [
        (VERIFIED, np.array([1.0, 2.0])),
        (VERIFIED, np.array([True, False])),
        (VERIFIED, np.array([[1, 2]])),
        (VERIFIED, np.array(["2021"], dtype="datetime64[Y]")),
        (VERIFIED, 3),
        (VERIFIED, np.ma.MaskedArray([1, 2], mask=[False, True])),
        (LOGITS, np.zeros((4, 3))),
        (LOGITS, np.zeros(4)),
        (LOGITS, np.zeros((4, 2), dtype=bool)),
        (LOGITS, np.zeros((4, 2), dtype=complex)),
        (EXPLORED, np.array([0, 1])),
        (DOMAIN, np.array([1, 2])),
        (DOMAIN, "code"),
    ],
)
def test_a_wrong_array_faults_the_whole_column(column: Any, sent: Any) -> None:
    parsed = parse_column(column, sent, 2)
    assert parsed.values is None
    assert [fault.row for fault in parsed.faults] == [None]


def test_one_slot_too_many_points_at_the_anchor() -> None:
    fault = parse_column(LOGITS, np.zeros((4, 3)), 2).faults[0]
    assert fault.value == (4, 3)
    assert "drop_anchor_slot" in fault.remedy


def test_object_and_text_arrays_are_read_cell_by_cell() -> None:
    assert rows_at_fault(VERIFIED, np.array([1, True, None], dtype=object)) == [1, 2]
    parsed = parse_column(DOMAIN, np.array(["code", "chat"]), 2)
    assert parsed.faults == []
    assert parsed.values is not None
    assert [type(text) for text in parsed.values] == [str, str]


def test_refused_texts() -> None:
    long = "x" * (MAX_TEXT_LENGTH + 1)
    texts = ["code", None, "", "a\nb", "\ud800", long, "ok γ", "nul\x00"]
    assert refused_texts(texts, ()) == {"", "a\nb", "\ud800", long, "nul\x00"}
    assert refused_texts(["code", None, "x" * MAX_TEXT_LENGTH], ()) == set()
    assert refused_texts([None, None], ()) == set()
    assert refused_texts(["greedy", None, "Greedy"], ("greedy", "sampled")) == {"Greedy"}
