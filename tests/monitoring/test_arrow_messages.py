"""The size of a stream is known before any of it is decompressed or believed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from monitoring.arrow_messages import MOST_MESSAGES, StreamSize, measure_stream
from monitoring.parsed_batch import BatchTooLargeError, InvalidBatchError, UnreadableBatchError
from tests.monitoring.batch_bodies import arrow_stream, row, stream_of, table

ROWS = [row(domain="code", engine=f"e{k % 3}", step=k) for k in range(500)]


def measure(body: bytes, **limits: int) -> StreamSize:
    return measure_stream(body, **{"max_rows": 10_000, "max_bytes": 2**24} | limits)


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("rows", [None, 100])
def test_compression_does_not_hide_the_size(compression: str | None, rows: int | None) -> None:
    data = table(ROWS)
    size = measure(stream_of(data, compression=compression, rows=rows))
    assert size.rows == 500
    # What the buffers hold, give or take padding to 8 bytes per buffer.
    assert data.nbytes <= size.buffer_bytes <= data.nbytes + 8 * 40 * size.messages


def test_a_small_stream_that_unfolds_to_a_large_one_is_refused() -> None:
    zeros = pa.table({"a": np.zeros(1_000_000)})
    body = stream_of(zeros, compression="zstd")
    assert len(body) < 10_000
    with pytest.raises(BatchTooLargeError) as caught:
        measure(body, max_rows=2**40, max_bytes=2**20)
    assert (caught.value.field, caught.value.found) == ("buffers", 8_000_000)


def test_rows_without_buffers_are_counted() -> None:
    body = stream_of(pa.table({"a": pa.nulls(20_000)}))
    with pytest.raises(BatchTooLargeError) as caught:
        measure(body)
    assert (caught.value.field, caught.value.found) == ("rows", 20_000)


def test_words_without_rows_are_counted() -> None:
    words = pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int32()), pa.array([str(k) for k in range(20_000)])
    )
    with pytest.raises(BatchTooLargeError, match="dictionary"):
        measure(stream_of(pa.table({"a": words})))


def test_a_batch_per_row_is_refused() -> None:
    batch = pa.record_batch({"a": pa.array([1], pa.int8())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        for _ in range(MOST_MESSAGES + 1):
            writer.write_batch(batch)
    with pytest.raises(BatchTooLargeError, match="messages"):
        measure(bytes(sink.getvalue()), max_rows=10**9)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body[:100],
        lambda body: body[:-9],
        lambda body: body + b"x",
        lambda body: body + bytes(8),
        lambda body: body + body,
        lambda body: b"x" + body,
        lambda body: b"ARROW1\x00\x00" + body,
        lambda _: b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        lambda _: bytes(100),
        lambda _: b'{"gamma":3}',
        lambda _: b"PAR1" * 4,
    ],
)
def test_what_is_no_whole_stream_is_unreadable(change: Any) -> None:
    with pytest.raises(UnreadableBatchError):
        measure(change(arrow_stream(ROWS)))


def test_a_size_that_lies_is_counted_as_it_says() -> None:
    """A compressed buffer begins with its size: what would be allocated is what is believed."""
    body = bytearray(stream_of(pa.table({"a": np.zeros(1000)}), compression="zstd"))
    place = bytes(body).index(struct.pack("<q", 8000))
    body[place : place + 8] = struct.pack("<q", 2**50)
    with pytest.raises(BatchTooLargeError) as caught:
        measure(bytes(body))
    assert caught.value.found == 2**50


def test_damage_anywhere_is_an_error_or_harmless() -> None:
    draw = np.random.default_rng(7)
    good = stream_of(table(ROWS[:20]), compression="zstd")
    for _ in range(500):
        body = bytearray(good)
        body[draw.integers(len(body))] = draw.integers(256)
        try:
            measure(bytes(body))
        except InvalidBatchError:
            continue
