"""Versioned, checked bytes of integer arrays: what sketches are stored and sent as.

Layout, little-endian: 4-byte magic, u16 version, u16 number of header fields, the fields as i32,
u32 CRC-32 of fields and raw arrays, then the int64 arrays, concatenated and deflated. Sketches are
mostly zeros, so deflating them once is both smaller and faster than storing them raw.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from calib.errors import FormatError

__all__ = ["pack_sketch", "unpack_sketch"]

_PREFIX = struct.Struct("<4sHH")
_CHECK = struct.Struct("<I")
_LEVEL = 1  # a tenth larger than level 6 on real sketches, at a fifth of the time
_REMEDY = "send it again, or rebuild it from the rows"


def pack_sketch(
    magic: bytes, version: int, fields: Sequence[int], arrays: Sequence[NDArray[np.int64]]
) -> bytes:
    """Bytes of a sketch.

    Args:
        magic: 4 bytes that name the kind of sketch.
        version: of its layout, 0 … 65,535.
        fields: shape and parameters, each fits 32 bits.
        arrays: integer sums.
    """
    header = struct.pack(f"<{len(fields)}i", *fields)
    raw = b"".join(np.ascontiguousarray(array, dtype="<i8").tobytes() for array in arrays)
    check = _CHECK.pack(zlib.crc32(raw, zlib.crc32(header)))
    return _PREFIX.pack(magic, version, len(fields)) + header + check + zlib.compress(raw, _LEVEL)


def unpack_sketch(
    data: bytes,
    magic: bytes,
    version: int,
    shapes: Callable[[tuple[int, ...]], Sequence[tuple[int, ...]]],
    *,
    fields: int,
) -> tuple[tuple[int, ...], list[NDArray[np.int64]]]:
    """What :func:`pack_sketch` packed.

    Args:
        data: the bytes.
        magic: kind of sketch to expect.
        version: layout to expect.
        shapes: shape of every array, from the header fields; may raise ``ValueError``. It also
            bounds what is inflated, so a forged stream cannot fill the memory.
        fields: number of header fields to expect.

    Raises:
        FormatError: another kind, version or size, or bytes that were damaged.
    """
    source = "sketch bytes"
    if len(data) < _PREFIX.size:
        raise FormatError(source, "they end before the header does", _REMEDY)
    found_magic, found_version, found_fields = _PREFIX.unpack_from(data)
    if found_magic != magic or found_fields != fields:
        raise FormatError(source, f"they start with {found_magic!r}, not {magic!r}", _REMEDY)
    if found_version != version:
        reason = f"their version is {found_version}, this release reads {version}"
        raise FormatError(source, reason, "read it with the release that wrote it")
    body = _PREFIX.size + 4 * fields
    if len(data) < body + _CHECK.size:
        raise FormatError(source, "they end before the header does", _REMEDY)
    header = data[_PREFIX.size : body]
    values: tuple[int, ...] = struct.unpack(f"<{fields}i", header)
    try:
        wanted = list(shapes(values))
    except ValueError as error:
        raise FormatError(source, f"header {values}: {error}", _REMEDY) from error
    sizes = [int(np.prod(shape)) for shape in wanted]
    raw = _inflate(data[body + _CHECK.size :], 8 * sum(sizes), source)
    if zlib.crc32(raw, zlib.crc32(header)) != _CHECK.unpack_from(data, body)[0]:
        raise FormatError(source, "their checksum does not match", _REMEDY)
    flat = np.frombuffer(raw, dtype="<i8").astype(np.int64)
    parts = np.split(flat, np.cumsum(sizes)[:-1])
    return values, [part.reshape(shape) for part, shape in zip(parts, wanted, strict=True)]


def _inflate(packed: bytes, size: int, source: str) -> bytes:
    """Exactly ``size`` bytes."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(packed, size + 1)
    except zlib.error as error:
        raise FormatError(source, f"they cannot be inflated ({error})", _REMEDY) from error
    if len(raw) != size or not stream.eof or stream.unused_data:
        raise FormatError(source, f"they do not hold {size} bytes of sums", _REMEDY)
    return raw
