"""Telemetry bodies for tests: rows as objects, the same rows in every form a sender may choose."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from calib.formats.arrow import ipc_from_records, table_from_records
from calib.records import AcceptanceRecords

Row = dict[str, Any]


def row(gamma: int = 3, **cells: Any) -> Row:
    """One good row with the required columns, and ``cells`` beside or instead of them."""
    logits = [0.5 - 0.25 * k for k in range(gamma)]
    return {"confidence_logits": logits, "verified": gamma, "accepted": 1} | cells


def json_rows(rows: Sequence[object], gamma: object = 3, **members: Any) -> bytes:
    """A JSON body with an object a row."""
    return json.dumps({"gamma": gamma, "rows": list(rows)} | members).encode()


def json_columns(columns: dict[str, Any], gamma: object = 3, **members: Any) -> bytes:
    """A JSON body with a list a column."""
    return json.dumps({"gamma": gamma, "columns": columns} | members).encode()


def columns_of(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """Rows as columns; a cell that a row lacks is null."""
    names = dict.fromkeys(name for one in rows for name in one)
    return {name: [one.get(name) for one in rows] for name in names}


def records(rows: Sequence[Row], gamma: int = 3) -> AcceptanceRecords:
    """Good rows as records."""
    return AcceptanceRecords.from_columns(gamma, columns_of(rows))


def arrow_stream(rows: Sequence[Row], gamma: int = 3) -> bytes:
    """Good rows as an Arrow IPC stream."""
    return ipc_from_records(records(rows, gamma))


def table(rows: Sequence[Row], gamma: int = 3) -> pa.Table:
    """Good rows as a table with the telemetry metadata."""
    return table_from_records(records(rows, gamma))


def stream_of(data: pa.Table, *, compression: str | None = None, rows: int | None = None) -> bytes:
    """A table as an IPC stream.

    Args:
        data: the table.
        compression: of the buffers: ``"zstd"``, ``"lz4"`` or None.
        rows: most rows of a record batch.
    """
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, data.schema, options=options) as writer:
        writer.write_table(data, rows)
    return bytes(sink.getvalue())


def with_column(data: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """The table with one column replaced or added; the metadata stay."""
    metadata = data.schema.metadata
    if name in data.schema.names:
        data = data.set_column(data.schema.get_field_index(name), name, values)
    else:
        data = data.append_column(name, values)
    return data.replace_schema_metadata(metadata)
