from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.errors import FormatError, RecordError
from calib.formats.arrow import (
    FLOAT16_KEY,
    GAMMA_KEY,
    VERSION_KEY,
    arrow_schema,
    columns_from_table,
    ipc_from_records,
    iterate_parquet,
    read_parquet,
    records_from_ipc,
    records_from_table,
    table_from_ipc,
    table_from_records,
    write_parquet,
)
from calib.record_schema import COLUMN_BY_NAME
from calib.records import AcceptanceRecords, validate_rows
from tests.calib.record_batches import batches, lengths, plain_records


@pytest.fixture
def records() -> AcceptanceRecords:
    return plain_records(rows=6, gamma=3)


def with_metadata(table: pa.Table, **change: bytes | None) -> pa.Table:
    names = {"version": VERSION_KEY, "gamma": GAMMA_KEY}
    metadata = dict(table.schema.metadata)
    for name, value in change.items():
        del metadata[names[name]]
        if value is not None:
            metadata[names[name]] = value
    return table.replace_schema_metadata(metadata)


def replaced(table: pa.Table, name: str, array: pa.Array) -> pa.Table:
    return table.set_column(table.schema.names.index(name), name, array)


@pytest.mark.property
@settings(max_examples=50)
@given(batch=batches())
def test_ipc_round_trip_is_exact(batch: tuple[int, dict[str, list[Any]]]) -> None:
    gamma, columns = batch
    records = AcceptanceRecords.from_columns(gamma, columns)
    assert records_from_ipc(ipc_from_records(records), gamma).equals(records)


@pytest.mark.property
@settings(max_examples=50)
@given(batch=batches())
def test_parquet_round_trip_is_exact(
    tmp_path_factory: pytest.TempPathFactory, batch: tuple[int, dict[str, list[Any]]]
) -> None:
    gamma, columns = batch
    path = tmp_path_factory.getbasetemp() / "round-trip.parquet"
    records = AcceptanceRecords.from_columns(gamma, columns)
    write_parquet(records, path)
    assert read_parquet(path, gamma).equals(records)


def test_every_column_survives_both_ways(records: AcceptanceRecords, tmp_path: Path) -> None:
    assert list(records.columns()) == list(COLUMN_BY_NAME)
    path = tmp_path / "rows.parquet"
    write_parquet(records, path)
    assert read_parquet(path, 3).equals(records)
    assert records_from_ipc(ipc_from_records(records), 3).equals(records)
    assert os.listdir(tmp_path) == ["rows.parquet"]


def test_a_table_says_its_version_and_gamma(records: AcceptanceRecords) -> None:
    table = table_from_records(records)
    assert table.schema.equals(arrow_schema(3), check_metadata=True)
    assert table.schema.metadata == {VERSION_KEY: b"1", GAMMA_KEY: b"3"}
    table.validate(full=True)


def test_parquet_is_zstd_with_dictionaries_for_texts(
    records: AcceptanceRecords, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(records, path)
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunks = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
    assert "RLE_DICTIONARY" in chunks["domain"].encodings
    assert "RLE_DICTIONARY" not in chunks["confidence_logits.list.element"].encodings
    assert pq.read_schema(path).metadata[GAMMA_KEY] == b"3"


def test_compact_halves_logits_and_says_so(tmp_path: Path) -> None:
    columns = lengths(*[(2, 1)] * 4, gamma=2)
    columns["confidence_logits"] = [[1.23456, -7.65432]] * 4
    columns["soft_labels"] = [[0.1, None]] * 4
    records = AcceptanceRecords.from_columns(2, columns)
    path = tmp_path / "rows.parquet"
    write_parquet(records, path, compact=True)
    schema = pq.read_schema(path)
    assert schema.metadata[FLOAT16_KEY] == b"confidence_logits,soft_labels"
    assert schema.field("confidence_logits").type == pa.list_(pa.float16(), 2)
    read = read_parquet(path, 2)
    expected = records.confidence_logits.astype(np.float16).astype(np.float32)
    assert np.array_equal(read.confidence_logits, expected)
    assert read.confidence_logits.dtype == np.float32
    assert read.soft_labels is not None
    assert np.isnan(read.soft_labels[:, 1]).all()
    assert records_from_ipc(ipc_from_records(records, compact=True), 2).equals(read)
    assert FLOAT16_KEY not in (table_from_records(records).schema.metadata)


def test_a_logit_beyond_float16_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    columns = lengths((1, 1), gamma=1) | {"confidence_logits": [[1e5]]}
    records = AcceptanceRecords.from_columns(1, columns)
    with pytest.raises(RecordError, match="write compact=False"):
        write_parquet(records, tmp_path / "rows.parquet", compact=True)
    assert os.listdir(tmp_path) == []


def test_iterate_yields_the_rows_in_order(tmp_path: Path) -> None:
    records = plain_records(rows=10, gamma=3)
    path = tmp_path / "rows.parquet"
    write_parquet(records, path)
    parts = list(iterate_parquet(path, 3, batch_rows=4))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert AcceptanceRecords.concatenate(parts).equals(records)


def test_several_row_groups_make_one_set_of_records(tmp_path: Path) -> None:
    records = plain_records(rows=10, gamma=3)
    path = tmp_path / "rows.parquet"
    pq.write_table(table_from_records(records), path, row_group_size=3)
    assert read_parquet(path, 3).equals(records)
    assert AcceptanceRecords.concatenate(list(iterate_parquet(path, 3))).equals(records)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": None}, "foreign: no telemetry metadata"),
        ({"gamma": None}, "foreign: no telemetry metadata"),
        ({"version": b"2"}, "schema version 2, asked for 1; this release reads 1"),
        ({"version": b"x" * 9000}, "schema version xxx"),
        ({"gamma": b"7"}, "gamma 7, asked for 3; state the gamma"),
        ({"gamma": b"\xff"}, "asked for 3"),
        ({"gamma": b"9" * 9000}, "gamma 999"),
    ],
)
def test_metadata_is_checked(
    records: AcceptanceRecords, change: dict[str, bytes | None], message: str
) -> None:
    table = with_metadata(table_from_records(records), **change)
    with pytest.raises(FormatError, match=message) as caught:
        records_from_table(table, 3, source="rows.arrow")
    assert str(caught.value).startswith("rows.arrow: ")
    assert len(str(caught.value)) < 200


def test_columns_are_checked_by_name(records: AcceptanceRecords) -> None:
    table = table_from_records(records)
    unknown = table.append_column("bogus", pa.array([1] * 6))
    with pytest.raises(FormatError, match="unknown column 'bogus'"):
        records_from_table(unknown, 3)
    twice = table.append_column("verified", table.column("verified"))
    with pytest.raises(FormatError, match="a column comes twice"):
        records_from_table(twice, 3)
    with pytest.raises(FormatError, match="no column 'accepted'"):
        records_from_table(table.drop_columns(["accepted"]), 3)


def test_required_columns_suffice(records: AcceptanceRecords) -> None:
    table = table_from_records(records).select(["accepted", "verified", "confidence_logits"])
    read = records_from_table(table, 3)
    assert read.engine is None
    assert np.array_equal(read.accepted, records.accepted)


def test_a_nan_logit_is_refused_and_its_row_named(records: AcceptanceRecords) -> None:
    table = table_from_records(records)
    logits = records.confidence_logits.copy()
    logits[4, 1] = np.nan
    flat = pa.FixedSizeListArray.from_arrays(pa.array(logits.ravel()), 3)
    with pytest.raises(FormatError, match="confidence_logits: got nan; row 4 of 6: position 2"):
        records_from_table(replaced(table, "confidence_logits", flat), 3)


def test_bad_rows_of_a_stream_can_be_named_and_the_rest_kept(records: AcceptanceRecords) -> None:
    table = table_from_records(records)
    verified = pa.array([None, -5, 300, *records.verified[3:].tolist()], pa.int64())
    columns = columns_from_table(replaced(table, "verified", verified), 3)
    good, rejected = validate_rows(3, columns)
    assert [(entry.row, entry.field) for entry in rejected] == [
        (0, "verified"),
        (1, "verified"),
        (2, "verified"),
    ]
    assert rejected[0].reason.startswith("got None")
    assert good.equals(records.select([3, 4, 5]))


def test_no_rows_are_refused_when_read(tmp_path: Path) -> None:
    empty = AcceptanceRecords.empty(3)
    with pytest.raises(FormatError, match="0 rows"):
        records_from_ipc(ipc_from_records(empty), 3)
    path = tmp_path / "rows.parquet"
    write_parquet(empty, path)
    with pytest.raises(FormatError, match="0 rows"):
        read_parquet(path, 3)
    with pytest.raises(FormatError, match="no rows"):
        list(iterate_parquet(path, 3))


def test_a_stream_cut_anywhere_is_refused() -> None:
    records = AcceptanceRecords.from_columns(2, lengths((2, 1), (2, 2), gamma=2))
    sink = pa.BufferOutputStream()
    table = table_from_records(records)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=1):
            writer.write_batch(batch)
    whole = sink.getvalue().to_pybytes()
    assert records_from_ipc(whole, 2).equals(records)
    for end in range(len(whole)):
        with pytest.raises(FormatError):
            records_from_ipc(whole[:end], 2)
    with pytest.raises(FormatError):
        records_from_ipc(whole + b"more", 2)


@pytest.mark.property
@settings(max_examples=150)
@given(data=st.data())
def test_a_damaged_stream_is_refused_or_still_keeps_the_contract(data: st.DataObject) -> None:
    whole = bytearray(ipc_from_records(plain_records(rows=3, gamma=2)))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        records = records_from_ipc(bytes(whole), 2)
    except FormatError:
        return
    assert AcceptanceRecords.from_columns(2, records.columns()).equals(records)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"\xff" * 64, b"{}" * 40, bytes(4096)])
def test_foreign_streams_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="Arrow IPC stream"):
        table_from_ipc(data)


def test_foreign_and_torn_parquet_files_are_refused(
    records: AcceptanceRecords, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(records, path)
    whole = path.read_bytes()
    for data in (b"", b"PAR1", b"text " * 50, whole[: len(whole) // 2], whole[:-1], whole[9:]):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"rows\.parquet: not readable"):
            read_parquet(path, 3)
        with pytest.raises(FormatError):
            list(iterate_parquet(path, 3))


def test_a_flipped_bit_in_a_page_is_seen(records: AcceptanceRecords, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(records, path)
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(0)
    damaged = bytearray(path.read_bytes())
    # The last byte of the chunk is page data: its header comes first.
    damaged[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(FormatError, match="not readable"):
        read_parquet(path, 3)


def test_a_parquet_file_of_somebody_else_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"verified": [1], "accepted": [1]}), path)
    with pytest.raises(FormatError, match="foreign"):
        read_parquet(path, 3)


def test_gamma_is_stated_by_the_caller(records: AcceptanceRecords, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(records, path)
    with pytest.raises(FormatError, match="gamma 3, asked for 7"):
        read_parquet(path, 7)
    with pytest.raises(RecordError, match="gamma"):
        read_parquet(path, 0)


def test_a_missing_file_is_no_format_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "missing.parquet", 3)
    with pytest.raises(FileNotFoundError):
        next(iterate_parquet(tmp_path / "missing.parquet", 3))


def test_read_records_cannot_be_written_to(records: AcceptanceRecords) -> None:
    read = records_from_ipc(ipc_from_records(records), 3)
    for array in read.columns().values():
        assert not array.flags.writeable


def test_lists_may_carry_the_anchors_slot() -> None:
    records = plain_records(rows=6, gamma=4)
    table = with_metadata(table_from_records(records), gamma=b"3")
    columns = columns_from_table(table, 3, slots=4)
    assert np.array_equal(np.asarray(columns["confidence_logits"]), records.confidence_logits)
    with pytest.raises(FormatError, match="confidence_logits"):
        columns_from_table(table, 3)


def test_texts_with_and_without_unknown_cells(records: AcceptanceRecords) -> None:
    for index_type in (pa.int8(), pa.uint16(), pa.int64()):
        for words in (["a", None, "b", "a", None, "a"], ["a", "b"] * 3):
            column = (
                pa.array(words).dictionary_encode().cast(pa.dictionary(index_type, pa.string()))
            )
            read = columns_from_table(replaced(table_from_records(records), "domain", column), 3)
            assert np.asarray(read["domain"]).tolist() == words
