from __future__ import annotations

import zlib

import numpy as np
import pytest

from calib.errors import FormatError
from calib.sketch_bytes import pack_sketch, unpack_sketch

MAGIC = b"TEST"


def shapes(fields: tuple[int, ...]) -> list[tuple[int, ...]]:
    if fields[0] < 0:
        raise ValueError("negative")
    return [(fields[0], 3), (0, 3)]


def packed(rows: int = 2, version: int = 1) -> bytes:
    sums = np.arange(rows * 3, dtype=np.int64).reshape(rows, 3) - 2**40
    return pack_sketch(MAGIC, version, (rows,), [sums, np.zeros((0, 3), dtype=np.int64)])


def test_round_trip_keeps_every_bit() -> None:
    fields, arrays = unpack_sketch(packed(), MAGIC, 1, shapes, fields=1)
    assert fields == (2,)
    assert arrays[0].tolist() == [[-(2**40), 1 - 2**40, 2 - 2**40], [n - 2**40 for n in (3, 4, 5)]]
    assert arrays[1].shape == (0, 3)
    assert arrays[0].dtype == np.int64
    assert arrays[0].flags.writeable


def test_layout_is_pinned() -> None:
    data = pack_sketch(MAGIC, 1, (1,), [np.array([[7, 0, 0]]), np.zeros((0, 3), np.int64)])
    raw = (7).to_bytes(8, "little") + bytes(16)
    head = b"TEST" + b"\x01\x00" + b"\x01\x00" + b"\x01\x00\x00\x00"
    assert data[:12] == head
    assert data[12:16] == zlib.crc32(raw, zlib.crc32(head[8:])).to_bytes(4, "little")
    assert zlib.decompress(data[16:]) == raw


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "end before"),
        (packed()[:10], "end before"),
        (packed()[:-4], "do not hold"),
        (b"OTHR" + packed()[4:], "start with"),
        (packed(version=2), "version is 2"),
        (packed()[:13] + b"\x00\x00\x00" + packed()[16:], "checksum"),
        (packed() + b"more", "do not hold"),
        (packed()[:8] + b"\x03\x00\x00\x00" + packed()[12:], "do not hold"),
        (packed()[:8] + b"\xff\xff\xff\xff" + packed()[12:], "negative"),
        (packed()[:16] + b"nonsense", "inflated"),
    ],
)
def test_damage_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        unpack_sketch(data, MAGIC, 1, shapes, fields=1)


def test_a_forged_stream_does_not_fill_the_memory() -> None:
    bomb = packed()[:16] + zlib.compress(bytes(50_000_000))
    with pytest.raises(FormatError, match="do not hold"):
        unpack_sketch(bomb, MAGIC, 1, shapes, fields=1)
