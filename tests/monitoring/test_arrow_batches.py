"""Arrow streams: good rows kept, bad ones named, and nothing believed that the sender says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from calib.formats.arrow import GAMMA_KEY, VERSION_KEY
from calib.records import AcceptanceRecords
from monitoring.arrow_batches import CHUNK_ROWS, parse_arrow_batch
from monitoring.parsed_batch import (
    BatchTooLargeError,
    InvalidBatchError,
    ParsedBatch,
    UnreadableBatchError,
)
from tests.calib.record_batches import plain_records
from tests.monitoring.batch_bodies import (
    arrow_stream,
    columns_of,
    records,
    row,
    stream_of,
    table,
    with_column,
)

METADATA = {VERSION_KEY: "1", GAMMA_KEY: "3"}


def parse(data: pa.Table, **options: Any) -> ParsedBatch:
    return parse_arrow_batch(stream_of(data), 3, **options)


def faults(parsed: ParsedBatch) -> list[tuple[int | None, str]]:
    return [(fault.row, fault.field) for fault in parsed.rejected]


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("rows", [None, 2])
def test_every_column_comes_through(compression: str | None, rows: int | None) -> None:
    from calib.formats.arrow import table_from_records

    sent = plain_records(6, 3)
    parsed = parse_arrow_batch(
        stream_of(table_from_records(sent), compression=compression, rows=rows), 3
    )
    assert parsed.records.equals(sent)
    assert parsed.rejected == ()


def test_a_writer_of_its_own_may_use_plain_types() -> None:
    data = pa.table(
        {
            "confidence_logits": pa.array([[1.0, 2.0, 3.0]] * 2, pa.list_(pa.float64(), 3)),
            "verified": pa.array([2, 3], pa.int64()),
            "accepted": pa.array([1, 3], pa.int32()),
            "engine": pa.array(["a", None]),
            "domain": pa.nulls(2),
            "step": pa.array([5, 6], pa.uint64()),
        }
    ).replace_schema_metadata(METADATA)
    parsed = parse(data)
    expected = AcceptanceRecords.from_columns(
        3,
        columns_of(
            [
                row(verified=2, confidence_logits=[1, 2, 3], engine="a", step=5, domain=None),
                row(confidence_logits=[1, 2, 3], accepted=3, step=6),
            ]
        ),
    )
    assert parsed.records.equals(expected)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("verified", pa.array([1, 4, 1], pa.int16())),
        ("verified", pa.array([1, -1, 1], pa.int8())),
        ("verified", pa.array([1, None, 1], pa.uint8())),
        ("accepted", pa.array([1, 300, 1], pa.int64())),
        ("accepted", pa.array([1, 2**63, 1], pa.uint64())),
        ("confidence_logits", pa.array([[1, 2, 3], [1, float("nan"), 3], [1, 2, 3]])),
        ("confidence_logits", pa.array([[1, 2, 3], [1, 1e39, 3], [1, 2, 3]])),
        ("confidence_logits", pa.array([[1.0, 2, 3], None, [1, 2, 3]])),
        ("confidence_logits", pa.array([[1.0, 2, 3], [1, None, 3], [1, 2, 3]])),
        ("propensity", pa.array([0.5, 1.5, None], pa.float32())),
        ("domain", pa.array(["code", "a\nb", None])),
        ("acceptance_rule", pa.array(["greedy", "magic", None])),
        ("step", pa.array([1, -2, None], pa.int64())),
        ("flags", pa.array([0, 64, 0], pa.uint8())),
    ],
)
def test_a_wrong_cell_costs_its_row_only(column: str, values: pa.Array) -> None:
    if column == "confidence_logits":
        values = values.cast(pa.list_(pa.float64(), 3))
    parsed = parse(with_column(table([row(), row(), row()]), column, values))
    assert faults(parsed) == [(1, column)]
    assert len(parsed.records) == 2


def test_many_chunks_keep_numbers_and_order() -> None:
    count = CHUNK_ROWS + 10
    data = table([row(step=k, request=f"r{k}", engine="e") for k in range(count)])
    accepted = np.ones(count, dtype=np.int64)
    accepted[[3, CHUNK_ROWS, count - 1]] = 9
    parsed = parse(with_column(data, "accepted", pa.array(accepted)))
    assert [fault.row for fault in parsed.rejected] == [3, CHUNK_ROWS, count - 1]
    assert parsed.records.step is not None
    kept = np.flatnonzero(accepted == 1)
    assert np.array_equal(parsed.records.step, kept)
    assert parsed.records.request is not None
    assert parsed.records.request.tolist() == [f"r{k}" for k in kept]


def test_blocks_that_come_twice_count_once() -> None:
    one = row(engine="e", request="r", step=1)
    parsed = parse(table([one, one, one | {"flags": 2}, row()]))
    assert (len(parsed.records), parsed.duplicates) == (2, 2)


def test_an_engine_fills_what_is_missing() -> None:
    filled = parse(table([row(engine="a"), row()]), engine="b")
    assert filled.records.engine is not None
    assert filled.records.engine.tolist() == ["a", "b"]
    added = parse(table([row()]), engine="b")
    assert added.records.engine is not None
    assert added.records.engine.tolist() == ["b"]


def test_r49_a_drafter_with_the_anchor_sends_one_slot_more() -> None:
    logits = pa.array([[9.0, 1, 2, 3]] * 2, pa.list_(pa.float32(), 4))
    data = with_column(table([row(), row(verified=0, accepted=0)]), "confidence_logits", logits)
    parsed = parse(data, anchor_included=True)
    assert parsed.records.equals(
        records([row(confidence_logits=[1.0, 2, 3], verified=2, accepted=0)])
    )
    assert faults(parsed) == [(1, "verified")]
    assert "anchor" in parsed.rejected[0].reason
    with pytest.raises(InvalidBatchError, match="confidence_logits"):
        parse(data)
    with pytest.raises(InvalidBatchError, match="confidence_logits"):
        parse(table([row()]), anchor_included=True)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (table([row()]).slice(0, 0), "rows"),
        (table([row(gamma=4)], 4), "gamma"),
        (table([row()]).replace_schema_metadata(None), "columns"),
        (table([row()]).replace_schema_metadata({VERSION_KEY: "1"}), "columns"),
        (table([row()]).replace_schema_metadata(METADATA | {GAMMA_KEY: "x"}), "gamma"),
        (table([row()]).replace_schema_metadata(METADATA | {GAMMA_KEY: "3.0"}), "gamma"),
        (table([row()]).replace_schema_metadata(METADATA | {VERSION_KEY: "2"}), "columns"),
        (table([row()]).drop_columns(["verified"]), "columns"),
        (with_column(table([row()]), "logits", pa.array([1.0])), "columns"),
        (with_column(table([row()]), "verified", pa.array([2.0])), "columns"),
        (with_column(table([row()]), "verified", pa.array([True])), "columns"),
        (with_column(table([row()]), "verified", pa.array(["2"])), "columns"),
        (with_column(table([row()]), "explored", pa.array([1])), "columns"),
        (with_column(table([row()]), "domain", pa.array([b"code"])), "columns"),
        (with_column(table([row()]), "confidence_logits", pa.array([[1.0, 2, 3]])), "columns"),
        (with_column(table([row()]), "confidence_logits", pa.array([1.0])), "columns"),
    ],
)
def test_another_form_is_invalid(data: pa.Table, field: str) -> None:
    with pytest.raises(InvalidBatchError) as caught:
        parse(data)
    assert not isinstance(caught.value, UnreadableBatchError)
    assert (caught.value.field, caught.value.rows) == (field, data.num_rows)


def test_a_column_that_comes_twice_is_invalid() -> None:
    data = table([row()])
    doubled = pa.Table.from_arrays(
        [*data.columns, data.column("verified")], [*data.schema.names, "verified"]
    ).replace_schema_metadata(data.schema.metadata)
    with pytest.raises(InvalidBatchError, match="twice"):
        parse(doubled)


def test_a_column_of_nulls_names_every_row() -> None:
    parsed = parse(with_column(table([row(), row()]), "confidence_logits", pa.nulls(2)))
    assert faults(parsed) == [(0, "confidence_logits"), (1, "confidence_logits")]


def test_limits() -> None:
    body = stream_of(table([row()] * 100), compression="zstd")
    assert len(parse_arrow_batch(body, 3, max_rows=100).records) == 100
    with pytest.raises(BatchTooLargeError):
        parse_arrow_batch(body, 3, max_rows=99)
    with pytest.raises(BatchTooLargeError):
        parse_arrow_batch(body, 3, max_bytes=1000)


@pytest.mark.parametrize("cut", [0, 4, 8, 50])
def test_a_stream_that_was_cut_is_unreadable_or_empty(cut: int) -> None:
    body = arrow_stream([row()])
    with pytest.raises(InvalidBatchError):
        parse_arrow_batch(body[: len(body) - cut] if cut else b"", 3)


def test_dictionary_indices_beyond_the_dictionary_are_unreadable() -> None:
    """Offsets and indices come from outside; followed blindly they read foreign memory."""
    indices = pa.array([0, 7], pa.int32())
    broken = pa.DictionaryArray.from_arrays(indices, pa.array(["code"]), safe=False)
    data = with_column(table([row(), row()]), "domain", broken)
    with pytest.raises(UnreadableBatchError):
        parse(data)


def test_damage_anywhere_is_an_error_or_a_row() -> None:
    """One changed byte: an error, a rejection, or another good value, but never a crash."""
    draw = np.random.default_rng(3)
    good = arrow_stream([row(domain="code", engine="e", step=k) for k in range(5)])
    for _ in range(300):
        body = bytearray(good)
        body[draw.integers(len(body))] ^= 1 << draw.integers(8)
        try:
            parsed = parse_arrow_batch(bytes(body), 3, max_rows=1000)
        except InvalidBatchError:
            continue
        assert len(parsed.records) + parsed.duplicates + parsed.rejected_total > 0
