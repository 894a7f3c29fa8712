"""Arrow streams of which nothing may be stored, for a drafter of γ = 7 without anchor."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from calib.formats.arrow import GAMMA_KEY, VERSION_KEY
from tests.monitoring.batch_bodies import (
    arrow_stream,
    json_rows,
    row,
    stream_of,
    table,
    with_column,
)

GAMMA = 7
LOGITS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
GOOD = row(GAMMA, confidence_logits=LOGITS, verified=5, accepted=3)
NAN, INFINITY = float("nan"), float("inf")


def _table(**cells: Any) -> pa.Table:
    return table([GOOD | cells] * 2, GAMMA)


def _with(name: str, values: Any) -> bytes:
    return stream_of(with_column(_table(), name, values))


def _metadata(**changes: str | None) -> bytes:
    keys = {"version": VERSION_KEY, "gamma": GAMMA_KEY}
    metadata = {VERSION_KEY: "1", GAMMA_KEY: "7"}
    for name, value in changes.items():
        if value is None:
            del metadata[keys[name]]
        else:
            metadata[keys[name]] = value
    return stream_of(_table().replace_schema_metadata(metadata or None))


def _lists(*rows: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(list(rows), kind or pa.list_(pa.float32(), 7))


STREAM = arrow_stream([GOOD, GOOD], GAMMA)

NO_STREAM: dict[str, bytes] = {
    "json called arrow": json_rows([GOOD], GAMMA),
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "cut": STREAM[: len(STREAM) // 2],
    "without its end": STREAM[:-8],
    "cut by a byte": STREAM[:-1],
    "garbage behind": STREAM + b"garbage",
    "zeros behind": STREAM + bytes(8),
    "second stream behind": STREAM + STREAM,
    "byte in front": b"\x00" + STREAM,
    "arrow file": b"ARROW1\x00\x00" + STREAM + b"ARROW1",
    "parquet": b"PAR1" + bytes(64) + b"PAR1",
    "negative length": b"\xff\xff\xff\xff" + struct.pack("<i", -5) + STREAM[8:],
    "enormous length": b"\xff\xff\xff\xff" + struct.pack("<i", 2**31 - 1) + STREAM[8:],
    "index beyond the dictionary": _with(
        "domain",
        pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int32()), pa.array(["a"]), safe=False),
    ),
}

OTHER_STREAM: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 0),
    "no rows": (stream_of(_table().slice(0, 0)), 0),
    "no metadata": (_metadata(version=None, gamma=None), 2),
    "no version": (_metadata(version=None), 2),
    "no gamma": (_metadata(gamma=None), 2),
    "newer version": (_metadata(version="2"), 2),
    "gamma shorter": (_metadata(gamma="6"), 2),
    "gamma longer": (_metadata(gamma="8"), 2),
    "gamma text": (_metadata(gamma="seven"), 2),
    "gamma float": (_metadata(gamma="7.0"), 2),
    "gamma blank": (_metadata(gamma=""), 2),
    "other gamma altogether": (arrow_stream([row(5)] * 2, 5), 2),
    "no logits": (stream_of(_table().drop_columns(["confidence_logits"])), 2),
    "no verified": (stream_of(_table().drop_columns(["verified"])), 2),
    "no accepted": (stream_of(_table().drop_columns(["accepted"])), 2),
    "unknown column": (_with("logits", pa.array([1.0, 2.0])), 2),
    "lists of any length": (_with("confidence_logits", pa.array([LOGITS] * 2)), 2),
    "lists too short": (
        _with("confidence_logits", _lists(LOGITS[:6], LOGITS[:6], kind=pa.list_(pa.float32(), 6))),
        2,
    ),
    "anchor slot": (
        _with(
            "confidence_logits", _lists([0, *LOGITS], [0, *LOGITS], kind=pa.list_(pa.float32(), 8))
        ),
        2,
    ),
    "logits as text": (_with("confidence_logits", pa.array(["1", "2"])), 2),
    "logits as numbers": (_with("confidence_logits", pa.array([1.0, 2.0])), 2),
    "lengths as floats": (_with("verified", pa.array([5.0, 5.0])), 2),
    "lengths as booleans": (_with("verified", pa.array([True, True])), 2),
    "lengths as text": (_with("verified", pa.array(["5", "5"])), 2),
    "lengths as dates": (_with("verified", pa.array([5, 5], pa.date32())), 2),
    "lengths as decimals": (_with("verified", pa.array([5, 5], pa.decimal128(5, 0))), 2),
    "flags as text": (_with("flags", pa.array(["warmup", None])), 2),
    "explored as numbers": (_with("explored", pa.array([1, 0], pa.uint8())), 2),
    "domain as bytes": (_with("domain", pa.array([b"code", b"code"])), 2),
    "domain as numbers": (_with("domain", pa.array([1, 2])), 2),
    "timestamp as timestamp": (_with("timestamp", pa.array([1, 2], pa.timestamp("s"))), 2),
    "structs": (_with("domain", pa.array([{"a": 1}, {"a": 2}])), 2),
}

BAD_STREAM_ROWS: dict[str, bytes] = {
    "nan logits": _with("confidence_logits", _lists([NAN] * 7, [*LOGITS[:6], NAN])),
    "infinite logits": _with("confidence_logits", _lists([INFINITY] * 7, [-INFINITY] * 7)),
    "logits beyond float32": _with(
        "confidence_logits", _lists([1e39] * 7, [-1e39] * 7, kind=pa.list_(pa.float64(), 7))
    ),
    "null logits": _with("confidence_logits", _lists(None, None)),
    "null cells": _with("confidence_logits", _lists([None] * 7, [*LOGITS[:6], None])),
    "column of nulls": _with("confidence_logits", pa.nulls(2)),
    "verified above gamma": _with("verified", pa.array([8, 255], pa.uint8())),
    "verified negative": _with("verified", pa.array([-1, -128], pa.int8())),
    "verified that would wrap": _with("verified", pa.array([256 + 5, 2**32 + 5], pa.int64())),
    "verified null": _with("verified", pa.nulls(2)),
    "accepted above verified": _with("accepted", pa.array([6, 7], pa.uint8())),
    "accepted enormous": _with("accepted", pa.array([2**63, 2**64 - 1], pa.uint64())),
    "revision below unknown": _with("revision", pa.array([-2, -3], pa.int32())),
    "propensity above one": _with("propensity", pa.array([1.5, 2.0], pa.float32())),
    "flags beyond the set": _with("flags", pa.array([32, 64], pa.uint8())),
    "soft labels above one": _with("soft_labels", _lists([1.5] * 7, [2.0] * 7)),
    "rule unknown": _with("acceptance_rule", pa.array(["magic", ""])),
    "domain with control characters": _with("domain", pa.array(["a\nb", "\x00"])),
    "domain too long": _with("domain", pa.array(["x" * 257, "y" * 1000])),
    "timestamp in milliseconds": _with("timestamp", pa.array([1.7e12, 1.8e12])),
    "scheduled below verified": _with("scheduled", pa.array([4, 0], pa.uint8())),
}
