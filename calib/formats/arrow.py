"""Records as Arrow tables, IPC streams (the wire form of telemetry) and Parquet files.

Per-position columns are ``FixedSizeList<float32>[γ]``, texts are dictionary-encoded, unknown
cells are null (no NaN leaves the project). The schema's metadata names format version and γ:

``dspark_calib.schema_version``   1
``dspark_calib.gamma``            block size
``dspark_calib.float16``          comma list of columns rounded to float16 (``compact=True``)

Reading happens in two steps, so that a service can keep the good rows of a batch:
:func:`columns_from_table` checks the form and raises :class:`FormatError`, then
``validate_rows`` or ``from_columns`` checks the values. :func:`records_from_table` does both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from calib.atomic_files import atomic_writer
from calib.errors import FormatError, RecordError
from calib.formats.arrow_columns import (
    COMPACT_COLUMNS,
    array_from_values,
    arrow_type,
    values_from_array,
)
from calib.record_schema import COLUMN_BY_NAME, COLUMNS, ColumnKind, Presence, check_gamma
from calib.records import AcceptanceRecords

SCHEMA_VERSION = 1
VERSION_KEY = b"dspark_calib.schema_version"
GAMMA_KEY = b"dspark_calib.gamma"
FLOAT16_KEY = b"dspark_calib.float16"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# Large enough to compress well, small enough that γ = 16 logits of one group stay below 9 MB.
ROW_GROUP_ROWS = 131_072
_TEXT_COLUMNS = [column.name for column in COLUMNS if column.kind is ColumnKind.TEXT]
_PARQUET_REMEDY = "give a Parquet file of telemetry that this project wrote"


def arrow_schema(gamma: int, *, compact: bool = False) -> pa.Schema:
    """Every column in its Arrow type; a table may leave out the optional ones.

    Args:
        gamma: block size.
        compact: logits and soft labels as float16.
    """
    gamma = check_gamma(gamma)
    metadata = {VERSION_KEY: str(SCHEMA_VERSION), GAMMA_KEY: str(gamma)}
    if compact:
        metadata[FLOAT16_KEY] = ",".join(COMPACT_COLUMNS)
    fields = [
        pa.field(column.name, arrow_type(column, gamma, compact=compact), nullable=column.nullable)
        for column in COLUMNS
    ]
    return pa.schema(fields, metadata=metadata)


def table_from_records(records: AcceptanceRecords, *, compact: bool = False) -> pa.Table:
    """The records as one table with the columns they have.

    Args:
        records: rows to convert; none is allowed.
        compact: round logits and soft labels to float16 (11 significant bits), half the size;
            the metadata says so. Do not fit on such a copy where parity matters.

    Raises:
        RecordError: a logit beyond ±65504 with ``compact=True``.
    """
    full = arrow_schema(records.gamma, compact=compact)
    present = records.cells()
    arrays = [
        array_from_values(COLUMN_BY_NAME[name], values, full.field(name).type)
        for name, values in present.items()
    ]
    schema = pa.schema([full.field(name) for name in present], metadata=full.metadata)
    return pa.Table.from_arrays(arrays, schema=schema)


def columns_from_table(
    table: pa.Table,
    gamma: int,
    *,
    slots: int | None = None,
    source: object = "Arrow table",
) -> dict[str, object]:
    """The table's columns as arrays for ``from_columns`` or ``validate_rows``; values unchecked.

    Args:
        table: with this module's metadata; optional columns may be missing.
        gamma: block size as the caller knows it.
        slots: width of the lists; γ unless the anchor's slot is sent too, in which case
            :func:`calib.engine_conventions.drop_anchor_slot` comes next.
        source: what the table was read from, for error messages.

    Raises:
        FormatError: foreign metadata, another γ, a newer version, unknown, doubled or missing
            columns, or a column of another type.
    """
    gamma = check_gamma(gamma)
    _check_metadata(table.schema, gamma, source)
    _check_names(table.schema.names, source)
    width = gamma if slots is None else slots
    return {
        column.name: values_from_array(column, table.column(column.name), width, source=source)
        for column in COLUMNS
        if column.name in table.schema.names
    }


def records_from_table(
    table: pa.Table, gamma: int, *, source: object = "Arrow table"
) -> AcceptanceRecords:
    """The table as records.

    Raises:
        FormatError: as :func:`columns_from_table`, or a value that breaks the row contract (a
            NaN logit, more accepted than verified, …), or no rows.
    """
    columns = columns_from_table(table, gamma, source=source)
    try:
        return AcceptanceRecords.from_columns(gamma, columns)
    except RecordError as error:
        raise FormatError(source, str(error), "correct or leave out these rows") from error


def ipc_from_records(records: AcceptanceRecords, *, compact: bool = False) -> bytes:
    """The records as one Arrow IPC stream.

    Raises:
        RecordError: as :func:`table_from_records`.
    """
    table = table_from_records(records, compact=compact)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def table_from_ipc(data: bytes, *, source: object = "Arrow IPC stream") -> pa.Table:
    """The table in an IPC stream from an untrusted sender.

    Raises:
        FormatError: empty, foreign, corrupt, or without the end-of-stream mark: a stream that
            was cut between two batches would otherwise read as a shorter one.
    """
    if not data:
        raise FormatError(source, "no bytes", "send an Arrow IPC stream")
    with _arrow_faults(source, "send an Arrow IPC stream"):
        table = pa.ipc.open_stream(pa.py_buffer(data)).read_all()
        # Offsets and dictionary indices come from outside: without this they are followed blindly.
        table.validate(full=True)
    if not data.endswith(_END_OF_STREAM):
        remedy = "close the stream writer, then send all bytes"
        raise FormatError(source, "truncated: no end-of-stream mark", remedy)
    return table


def records_from_ipc(
    data: bytes, gamma: int, *, source: object = "Arrow IPC stream"
) -> AcceptanceRecords:
    """The records in an IPC stream.

    Raises:
        FormatError: as :func:`table_from_ipc` and :func:`records_from_table`.
    """
    return records_from_table(table_from_ipc(data, source=source), gamma, source=source)


def write_parquet(
    records: AcceptanceRecords,
    path: str | os.PathLike[str],
    *,
    compact: bool = False,
) -> None:
    """Write the records to one file, atomically.

    Args:
        records: rows to write.
        path: file to replace; its directory must exist.
        compact: round logits and soft labels to float16, noted in the file's metadata.

    Raises:
        RecordError: a logit beyond ±65504 with ``compact=True``.
        OSError: the file cannot be written.
    """
    import pyarrow.parquet as pq  # late, as below: the service reads and writes streams only

    table = table_from_records(records, compact=compact)
    with atomic_writer(path) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            use_dictionary=_TEXT_COLUMNS,
            row_group_size=ROW_GROUP_ROWS,
            write_page_checksum=True,
        )


def read_parquet(path: str | os.PathLike[str], gamma: int) -> AcceptanceRecords:
    """All rows of a file.

    Args:
        path: file written by :func:`write_parquet`, or one that keeps its schema.
        gamma: block size as the caller knows it; the file must agree.

    Raises:
        FormatError: foreign, corrupt, empty or truncated, another γ, values that break the row
            contract.
        OSError: the file does not exist or may not be read.
    """
    import pyarrow.parquet as pq

    with _opened(path) as source, _arrow_faults(path, _PARQUET_REMEDY):
        table = pq.ParquetFile(source, page_checksum_verification=True).read()
    return records_from_table(table, gamma, source=path)


def iterate_parquet(
    path: str | os.PathLike[str], gamma: int, *, batch_rows: int = ROW_GROUP_ROWS
) -> Iterator[AcceptanceRecords]:
    """The rows of a file in order, at most ``batch_rows`` at a time, for files beyond memory.

    Raises:
        FormatError: as :func:`read_parquet`, when the batch concerned is reached; a file without
            rows at once.
        OSError: the file does not exist or may not be read.
    """
    import pyarrow.parquet as pq

    with _opened(path) as source:
        with _arrow_faults(path, _PARQUET_REMEDY):
            file = pq.ParquetFile(source, page_checksum_verification=True)
            batches = file.iter_batches(batch_size=batch_rows)
        if file.metadata.num_rows == 0:
            raise FormatError(path, "no rows", "leave empty files out")
        while True:
            with _arrow_faults(path, _PARQUET_REMEDY):
                batch = next(batches, None)
            if batch is None:
                return
            table = pa.Table.from_batches([batch], schema=file.schema_arrow)
            yield records_from_table(table, gamma, source=path)


@contextmanager
def _arrow_faults(source: object, remedy: str) -> Iterator[None]:
    """Turn what pyarrow raises on bytes it cannot read into a :class:`FormatError`."""
    try:
        yield
    # Broken thrift and flatbuffers come back as OSError, broken UTF-8 as ValueError, absurd
    # sizes as MemoryError; ArrowException covers the rest.
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        first_line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormatError(source, f"not readable: {first_line}", remedy) from error


def _opened(path: str | os.PathLike[str]) -> pa.NativeFile:
    """The file, opened outside the fault handler: a missing file is no corrupt file."""
    # Not a memory map: a file truncated while mapped would kill the process.
    return pa.OSFile(os.fspath(path), "rb")


def _check_metadata(schema: pa.Schema, gamma: int, source: object) -> None:
    metadata = schema.metadata or {}
    if VERSION_KEY not in metadata or GAMMA_KEY not in metadata:
        remedy = "write it with this project, or set schema version and gamma in its metadata"
        raise FormatError(source, "foreign: no telemetry metadata", remedy)
    for key, name, expected, remedy in (
        (VERSION_KEY, "schema version", SCHEMA_VERSION, f"this release reads {SCHEMA_VERSION}"),
        (GAMMA_KEY, "gamma", gamma, "state the gamma the rows were made with"),
    ):
        if metadata[key] != str(expected).encode():
            found = metadata[key].decode(errors="replace")
            raise FormatError(source, f"{name} {found:.20}, asked for {expected}", remedy)


def _check_names(names: list[str], source: object) -> None:
    for name in names:
        if name not in COLUMN_BY_NAME:
            raise FormatError(source, f"unknown column {name!r}", "leave it out")
    if len(set(names)) != len(names):
        raise FormatError(source, "a column comes twice", "give each column once")
    for column in COLUMNS:
        if column.presence is Presence.REQUIRED and column.name not in names:
            raise FormatError(source, f"no column {column.name!r}", "write this column")
