"""Which rows are refused, and that nothing else happens to the others."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import RecordError
from calib.record_schema import COLUMN_BY_NAME, COLUMNS, Column, ColumnKind
from calib.records import AcceptanceRecords, validate_rows
from calib.row_validation import check_columns
from tests.calib.record_batches import batches, lengths, plain_columns

NAN, INF = float("nan"), float("inf")


def bad_cells(column: Column, gamma: int) -> list[Any]:
    """Cells that the column must refuse."""
    if column.kind is ColumnKind.TEXT:
        return ["", "tab\there", 7, True, "x" * 257, "\udc80", *(["fly"] if column.choices else [])]
    if column.kind is ColumnKind.BOOLEAN:
        return [0, 1, "true", 1.0]
    if column.kind is ColumnKind.INTEGER:
        high = gamma if column.bounded_by_gamma else column.high
        above = int(np.iinfo(column.dtype).max if high is None else high) + 1
        wrong = [-2, -300, above, above + 256, 1.0, True, "1", 2**70, [1]]
        wrong += [] if column.nullable else [-1, None]
        return [cell for cell in wrong if cell != column.null_value]
    wrong = [INF, -INF, 1e39 if column.dtype == np.float32 else 1e300, True, "0.5", 10**400]
    wrong += [] if column.low is None else [-1e-3]
    wrong += [] if column.high is None else [column.high * 1.001]
    return wrong + ([] if column.nullable else [None, NAN])


@pytest.mark.slow
@pytest.mark.property
@given(column=st.sampled_from(COLUMNS), data=st.data())
def test_one_bad_cell_rejects_exactly_its_row(column: Column, data: st.DataObject) -> None:
    gamma, columns = data.draw(batches(with_column=column.name))
    whole = AcceptanceRecords.from_columns(gamma, columns)
    rows = len(whole)
    row = data.draw(st.integers(0, rows - 1))
    cell = data.draw(st.sampled_from(bad_cells(column, gamma)))
    spoiled = copy.deepcopy(columns)
    if column.per_position:
        spoiled[column.name][row][data.draw(st.integers(0, gamma - 1))] = cell
    else:
        spoiled[column.name][row] = cell

    good, rejected = validate_rows(gamma, spoiled)

    assert [(entry.row, entry.field) for entry in rejected] == [(row, column.name)]
    assert "; " in rejected[0].reason
    assert good.equals(whole.select([kept for kept in range(rows) if kept != row]))
    with pytest.raises(RecordError, match=rf"{column.name}: .*; row {row} of {rows}: "):
        AcceptanceRecords.from_columns(gamma, spoiled)


@pytest.mark.property
@given(batch=batches())
def test_a_good_batch_is_kept_whole(batch: tuple[int, dict[str, list[Any]]]) -> None:
    gamma, columns = batch
    good, rejected = validate_rows(gamma, columns)
    assert rejected == []
    assert good.equals(AcceptanceRecords.from_columns(gamma, columns))


@pytest.mark.property
@given(
    row=st.integers(0, 19),
    spoil=st.sampled_from(
        [
            ("confidence_logits", NAN),
            ("confidence_logits", -INF),
            ("verified", -1),
            ("verified", 300),
            ("accepted", -200),
            ("accepted", 256),
            ("soft_labels", 1.01),
            ("token_acceptance", -0.01),
            ("propensity", 1.5),
            ("step", -2),
            ("timestamp", 1.7e12),
        ]
    ),
)
def test_one_bad_value_in_arrays_rejects_exactly_its_row(
    row: int, spoil: tuple[str, float]
) -> None:
    name, value = spoil
    columns: dict[str, Any] = {
        "confidence_logits": np.zeros((20, 7), dtype=np.float32),
        "verified": np.full(20, 4, dtype=np.int64),
        "accepted": np.full(20, 2, dtype=np.int64),
        "soft_labels": np.full((20, 7), 0.5, dtype=np.float32),
        "token_acceptance": np.full((20, 7), np.nan),
        "propensity": np.ones(20),
        "step": np.arange(20),
        "timestamp": np.full(20, 1.7e9),
    }
    columns[name][row] = value
    good, rejected = validate_rows(7, columns)
    assert [(entry.row, entry.field) for entry in rejected] == [(row, name)]
    assert len(good) == 19


def test_r40_impossible_lengths_are_refused_and_good_rows_kept() -> None:
    columns = lengths((4, -1), (4, 5), (9, 3), (4, 4), (7, 0), gamma=7)
    good, rejected = validate_rows(7, columns)
    assert [(entry.row, entry.field) for entry in rejected] == [
        (0, "accepted"),
        (1, "accepted"),
        (2, "verified"),
    ]
    assert [entry.reason for entry in rejected] == [
        "got -1; give a whole number from 0 to 7",
        "got 5; give at most the verified length (4), without bonus and anchor",
        "got 9; give a whole number from 0 to 7",
    ]
    assert good.verified.tolist() == [4, 7]
    assert good.accepted.tolist() == [4, 0]


@pytest.mark.parametrize(("verified", "accepted"), [(4, -1), (4, 5), (9, 3)])
def test_r40_each_alone_leaves_nothing(verified: int, accepted: int) -> None:
    columns = lengths((verified, accepted), gamma=7)
    good, rejected = validate_rows(7, columns)
    assert len(good) == 0
    assert len(rejected) == 1
    with pytest.raises(RecordError):
        AcceptanceRecords.from_columns(7, columns)


def test_a_row_with_several_faults_is_named_once_by_its_first() -> None:
    columns = plain_columns()
    columns["verified"][2] = 99
    columns["confidence_logits"][2][1] = None
    columns["domain"][2] = ""
    _, rejected = validate_rows(3, columns)
    assert [(entry.row, entry.field) for entry in rejected] == [(2, "confidence_logits")]


def test_scheduled_is_never_below_verified() -> None:
    columns = lengths((2, 1), (2, 1), gamma=3) | {"scheduled": [1, 3]}
    _, rejected = validate_rows(3, columns)
    assert [(entry.row, entry.field) for entry in rejected] == [(0, "scheduled")]
    assert "at least the verified length (2)" in rejected[0].reason


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"confidence": [0.5] * 6}, "confidence"),
        ({"verified": None}, "verified"),
        ({"accepted": [0, 0]}, "accepted"),
        ({"verified": np.zeros(6)}, "verified"),
        ({"confidence_logits": np.zeros((6, 4))}, "confidence_logits"),
        ({"explored": np.zeros(6, dtype=np.int64)}, "explored"),
    ],
)
def test_a_wrong_column_leaves_no_row_to_trust(change: dict[str, Any], field: str) -> None:
    columns = plain_columns() | change
    good, rejected = validate_rows(3, columns)
    assert len(good) == 0
    assert good.gamma == 3
    assert [(entry.row, entry.field) for entry in rejected] == [(None, field)]
    with pytest.raises(RecordError, match=rf"^{field}: "):
        AcceptanceRecords.from_columns(3, columns)


def test_every_wrong_column_is_named() -> None:
    columns = plain_columns() | {"extra": [1], "verified": None, "accepted": np.zeros(6)}
    checked = check_columns(3, columns)
    assert [fault.field for fault in checked.whole_batch] == ["extra", "verified", "accepted"]
    assert checked.cells == {}


def test_columns_must_be_a_mapping() -> None:
    with pytest.raises(RecordError, match="columns: got 'list'"):
        validate_rows(3, [plain_columns()])  # type: ignore[arg-type]


def test_values_are_judged_before_they_are_narrowed() -> None:
    """256 would wrap to 0 and 1e39 would become infinite only after the cast."""
    columns = lengths((1, 1), (1, 1), gamma=1)
    columns["accepted"][1] = 256
    assert [entry.row for entry in validate_rows(1, columns)[1]] == [1]
    unsigned = {**columns, "accepted": np.array([1, 2**64 - 1], dtype=np.uint64)}
    assert [entry.row for entry in validate_rows(1, unsigned)[1]] == [1]


def test_probabilities_are_not_rejected() -> None:
    columns = lengths(*[(1, 1)] * 200, gamma=1)
    columns["confidence_logits"] = [[0.9]] * 200
    assert validate_rows(1, columns)[1] == []


def test_unknown_values_may_be_sent_as_they_are_held() -> None:
    sent = {
        name: np.array([column.null_value, column.null_value]).astype(column.dtype)
        for name, column in COLUMN_BY_NAME.items()
        if column.nullable and not column.per_position and column.kind is not ColumnKind.TEXT
    }
    good, rejected = validate_rows(2, lengths((1, 0), (2, 2), gamma=2) | sent)  # type: ignore[operator]
    assert rejected == []
    assert len(good) == 2
