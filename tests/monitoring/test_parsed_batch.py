"""Every row that was sent ends in exactly one place."""

from __future__ import annotations

import pickle

import pytest

from calib.records import RejectedRow
from monitoring.parsed_batch import (
    MOST_REJECTED_NAMED,
    BatchBuilder,
    BatchRules,
    BatchTooLargeError,
    InvalidBatchError,
    UnreadableBatchError,
    WholeColumnsError,
)
from tests.monitoring.batch_bodies import columns_of, row


def test_chunks_keep_the_numbers_of_the_batch() -> None:
    builder = BatchBuilder(BatchRules(3))
    builder.add(columns_of([row(), row(verified=9)]), range(2))
    unreadable = RejectedRow(3, "row", "got 5")
    builder.add(columns_of([row(), row(accepted=-1)]), [2, 4], [unreadable])
    parsed = builder.finish()
    assert len(parsed.records) == 2
    assert [fault.row for fault in parsed.rejected] == [1, 3, 4]
    assert parsed.rejected_total == 3


def test_a_chunk_of_unreadable_rows_only() -> None:
    builder = BatchBuilder(BatchRules(3))
    builder.add({}, [], [RejectedRow(0, "row", "got 5")])
    parsed = builder.finish()
    assert (len(parsed.records), parsed.rejected_total) == (0, 1)


def test_reasons_stop_at_the_cap_and_counting_goes_on() -> None:
    builder = BatchBuilder(BatchRules(3))
    for start in range(0, 1800, 600):
        builder.add(columns_of([row(verified=9)] * 600), range(start, start + 600))
    parsed = builder.finish()
    assert [fault.row for fault in parsed.rejected] == list(range(MOST_REJECTED_NAMED))
    assert parsed.rejected_total == 1800


def test_a_whole_column_is_raised_and_refuses_all() -> None:
    builder = BatchBuilder(BatchRules(3))
    with pytest.raises(WholeColumnsError) as caught:
        builder.add({"verified": [1]}, range(1))
    parsed = builder.refused(caught.value, 7)
    assert {fault.field for fault in parsed.rejected} == {"confidence_logits", "accepted"}
    assert {fault.row for fault in parsed.rejected} == {None}
    assert parsed.rejected_total == 7


def test_slots_include_the_anchor_where_it_is_sent() -> None:
    assert BatchRules(7).slots == 7
    assert BatchRules(7, anchor_included=True).slots == 8


@pytest.mark.parametrize(
    "error",
    [
        InvalidBatchError("gamma", "is 4, not 3", "state it", rows=5),
        UnreadableBatchError("body", "is empty", "send one"),
        BatchTooLargeError("rows", 10, found=11),
    ],
)
def test_errors_survive_a_process_boundary(error: InvalidBatchError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.field, again.rows) == (str(error), error.field, error.rows)


def test_messages_name_field_and_remedy() -> None:
    assert str(BatchTooLargeError("rows", 1000, found=1001)) == (
        "telemetry batch: rows has 1,001, above 1,000; send smaller batches"
    )
