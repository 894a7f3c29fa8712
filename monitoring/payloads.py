"""Stored form of a batch: one Arrow IPC stream in one checksummed zstd frame.

Nothing is rounded: what was sent is what fits see. Columns that hold their default in every row are
left out, because reading puts it back. The whole stream is compressed, not its buffers, because in
a small batch the schema is the larger part.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
import pyarrow as pa
import zstandard

from calib.errors import FormatError
from calib.formats.arrow import GAMMA_KEY, records_from_table, table_from_ipc, table_from_records
from calib.record_schema import COLUMN_BY_NAME, Column, Presence
from calib.records import AcceptanceRecords

__all__ = ["payload_of", "records_of"]

SOURCE: Final = "stored batch"
_REMEDY: Final = "restore the database from a backup, or leave this batch out"
_LEVEL: Final = 1  # logits hardly compress: level 3 takes three times as long and saves nothing
_local = threading.local()


def payload_of(records: AcceptanceRecords) -> bytes:
    """The records as bytes to store; :func:`records_of` gives equal ones back."""
    table = table_from_records(records)
    needed = [
        name
        for name, values in records.cells().items()
        if not _is_default(COLUMN_BY_NAME[name], values)
    ]
    table = table.select(needed)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    compressed: bytes = _compressor().compress(sink.getvalue())
    return compressed


def records_of(payload: bytes) -> AcceptanceRecords:
    """The records of a stored batch.

    Raises:
        FormatError: damaged, or not written by :func:`payload_of`.
    """
    try:
        stream = zstandard.decompress(payload)
    except zstandard.ZstdError as error:
        raise FormatError(SOURCE, f"does not decompress: {error}", _REMEDY) from error
    table = table_from_ipc(stream, source=SOURCE)
    stated = (table.schema.metadata or {}).get(GAMMA_KEY, b"")
    if not stated.isdigit():
        raise FormatError(SOURCE, "states no gamma", _REMEDY)
    gamma = int(stated)
    if table.num_rows == 0:
        return AcceptanceRecords.empty(gamma)
    return records_from_table(table, gamma, source=SOURCE)


def _is_default(column: Column, values: Any) -> bool:
    """Whether a column says in every row what its absence says."""
    if column.presence is not Presence.DEFAULTED:
        return False
    absent = column.absent_value
    same = np.isnan(values) if absent != absent else values == absent
    return bool(same.all())


def _compressor() -> zstandard.ZstdCompressor:
    """A compressor of this thread: one may not be shared, and a new one a batch is slow."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(
            level=_LEVEL, write_checksum=True, write_content_size=True
        )
    found: zstandard.ZstdCompressor = _local.compressor
    return found
