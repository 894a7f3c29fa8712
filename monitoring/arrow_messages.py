"""How large an Arrow IPC stream becomes once it is read, found without reading it.

Buffers inside a stream may be compressed, and each says how large it is by its own word: a few
kilobytes can ask for gigabytes. Row counts are words of the sender too, and a column of nulls has
no buffer that would contradict them. So the messages are walked first. Their headers are
flatbuffers: tables whose first field is the distance to a list of field offsets.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from monitoring.parsed_batch import BatchTooLargeError, UnreadableBatchError

__all__ = ["StreamSize", "measure_stream"]

MOST_MESSAGES: Final = 10_000  # a batch a row would cost more to take apart than to check
_REMEDY: Final = "close the stream writer, then send all bytes of one stream"

# Field numbers of the tables in Arrow's Message.fbs; a union takes two, its type and its value.
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 0, 2, 3
_DICTIONARY_DATA = 1
_DICTIONARY_HEADER, _RECORD_HEADER = 2, 3
_BUFFER_BYTES: Final = 16  # offset and length


@dataclass(frozen=True, slots=True)
class StreamSize:
    """What a stream holds.

    Attributes:
        rows: rows of all record batches.
        buffer_bytes: bytes of all buffers after decompression, dictionaries included.
        messages: record batches and dictionaries.
    """

    rows: int
    buffer_bytes: int
    messages: int


def measure_stream(body: bytes, *, max_rows: int, max_bytes: int) -> StreamSize:
    """The size of the one stream that ``body`` consists of.

    Raises:
        BatchTooLargeError: more rows, bytes or messages than allowed.
        UnreadableBatchError: no stream, only a part of one, or bytes after its end.
    """
    source = pa.BufferReader(body)
    rows = buffer_bytes = messages = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(source):
            kind, length, size = _message_size(memoryview(message.metadata), message.body)
            rows += length if kind == _RECORD_HEADER else 0
            buffer_bytes, messages = buffer_bytes + size, messages + 1
            for field, found, limit in (
                ("rows", rows, max_rows),
                ("dictionary", length, max_rows),
                ("buffers", buffer_bytes, max_bytes),
                ("messages", messages, MOST_MESSAGES),
            ):
                if found > limit:
                    raise BatchTooLargeError(field, limit, found=found)
    except (pa.ArrowException, OSError, ValueError, MemoryError, struct.error) as error:
        if isinstance(error, BatchTooLargeError):
            raise
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UnreadableBatchError("body", f"is no Arrow IPC stream: {reason}", _REMEDY) from error
    if source.tell() != len(body):
        rest = len(body) - source.tell()
        raise UnreadableBatchError("body", f"has {rest} bytes after the stream", _REMEDY)
    return StreamSize(rows, buffer_bytes, messages)


def _message_size(header: memoryview, body: pa.Buffer | None) -> tuple[int, int, int]:
    """Kind, length and decompressed bytes of one message; only batches have the latter two."""
    message = _unsigned(header, 0)
    kind = _field(header, message, _MESSAGE_HEADER_TYPE)
    kind = header[kind] if kind else 0
    if kind not in (_DICTIONARY_HEADER, _RECORD_HEADER) or body is None:
        return kind, 0, 0
    batch = _table(header, message, _MESSAGE_HEADER)
    if kind == _DICTIONARY_HEADER:
        batch = _table(header, batch, _DICTIONARY_DATA)
    place = _field(header, batch, _BATCH_LENGTH)
    length: int = struct.unpack_from("<q", header, place)[0] if place else 0
    if length < 0:
        raise ValueError(f"a record batch of {length} rows")
    return kind, length, _batch_bytes(header, batch, memoryview(body))


def _batch_bytes(header: memoryview, batch: int, body: memoryview) -> int:
    """Bytes that the buffers of a batch take once decompressed."""
    if not _field(header, batch, _BATCH_COMPRESSION):
        return len(body)
    vector = _table(header, batch, _BATCH_BUFFERS)
    total = 0
    for number in range(_unsigned(header, vector)):
        place = vector + 4 + number * _BUFFER_BYTES
        offset, length = struct.unpack_from("<qq", header, place)
        if length >= 8:
            # A compressed buffer begins with its size; -1 says that it is stored as it is.
            (size,) = struct.unpack_from("<q", body, offset)
            total += length if size < 0 else size
    return total


def _field(buffer: memoryview, table: int, number: int) -> int:
    """Where a field of a table lies; 0 where it has its default."""
    offsets = table - struct.unpack_from("<i", buffer, table)[0]
    size = struct.unpack_from("<H", buffer, offsets)[0]
    slot = 4 + 2 * number
    distance = struct.unpack_from("<H", buffer, offsets + slot)[0] if slot + 2 <= size else 0
    return table + distance if distance else 0


def _table(buffer: memoryview, table: int, number: int) -> int:
    """Where the table or vector that a field refers to lies.

    Raises:
        ValueError: the field is missing.
    """
    place = _field(buffer, table, number)
    if not place:
        raise ValueError("a message lacks its header")
    return place + _unsigned(buffer, place)


def _unsigned(buffer: memoryview, place: int) -> int:
    value: int = struct.unpack_from("<I", buffer, place)[0]
    return value
