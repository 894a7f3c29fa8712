"""Telemetry requests of which nothing may be stored, as explicit lists.

Each is sent to a drafter of γ = 7 without anchor (:data:`GAMMA`) and must be answered with the
problem named by ``slug``; its rejected rows raise the reject counter by ``rejected`` and nothing
else changes. Used in this process and against a real server.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import zstandard

from tests.api.malformed_streams import (
    BAD_STREAM_ROWS,
    GAMMA,
    GOOD,
    INFINITY,
    LOGITS,
    NAN,
    NO_STREAM,
    OTHER_STREAM,
)
from tests.monitoring.batch_bodies import (
    arrow_stream,
    columns_of,
    json_columns,
    json_rows,
)

JSON = "application/json"
ARROW = "application/vnd.apache.arrow.stream"

STATUS = {
    "unreadable-request": 400,
    "drafter-not-found": 404,
    "content-too-large": 413,
    "unsupported-media-type": 415,
    "invalid-request": 422,
    "no-valid-rows": 422,
}
NOT_STRICT = b'{"gamma":7,"rows":[%b]}'
REQUIRED = b'"confidence_logits":[1,2,3,4,5,6,7],"verified":5,"accepted":3'
GOOD_BODY = json_rows([GOOD], GAMMA)


@dataclass(frozen=True)
class MalformedRequest:
    """A request and what it deserves.

    Attributes:
        name: of the test.
        body: as sent.
        slug: problem type of the answer.
        rejected: rows by which the reject counter rises.
        headers: all that matter, in order.
        query: of the address, without the question mark.
        drafter: name in the path, where it is not the registered one.
    """

    name: str
    body: bytes
    slug: str
    rejected: int = 0
    headers: tuple[tuple[str, str], ...] = (("Content-Type", JSON),)
    query: str = ""
    drafter: str | None = None

    @property
    def status(self) -> int:
        """Status of the answer."""
        return STATUS[self.slug]

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as they go over the wire."""
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in self.headers]

    def path(self, drafter: str) -> str:
        """Path and query, for the registered drafter's name."""
        query = f"?{self.query}" if self.query else ""
        return f"/v1/drafters/{self.drafter or drafter}/telemetry{query}"


# JSON texts that are none ----------------------------------------------------------------------

NO_JSON: dict[str, bytes] = {
    "empty": b"",
    "spaces": b" \r\n\t ",
    "null byte": b"\x00",
    "brace": b"{",
    "closing brace": b"}",
    "bare word": b"rows",
    "cut null": b"nul",
    "cut true": b'{"gamma":tru',
    "single quotes": b"{'gamma':7,'rows':[]}",
    "no quotes": b"{gamma:7,rows:[]}",
    "trailing comma in object": b'{"gamma":7,}',
    "trailing comma in rows": NOT_STRICT % b"{%b}," % REQUIRED,
    "trailing comma in row": NOT_STRICT % b"{%b,}" % REQUIRED,
    "leading comma": NOT_STRICT % b",{%b}" % REQUIRED,
    "missing comma": NOT_STRICT % b'{"verified":5 "accepted":3}',
    "missing colon": b'{"gamma" 7,"rows":[]}',
    "missing value": b'{"gamma":,"rows":[]}',
    "comment": b'/* rows */ {"gamma":7,"rows":[]}',
    "line comment": b'{"gamma":7, // block size\n"rows":[]}',
    "trailing word": GOOD_BODY + b" x",
    "trailing object": GOOD_BODY + b"{}",
    "trailing null byte": GOOD_BODY + b"\x00",
    "two documents a line": GOOD_BODY + b"\n" + GOOD_BODY,
    "cut in the middle": GOOD_BODY[: len(GOOD_BODY) // 2],
    "cut at the end": GOOD_BODY[:-1],
    "cut string": b'{"gamma":7,"rows":[{"domain":"co',
    "cut escape": b'{"gamma":7,"rows":[{"domain":"\\u00',
    "byte-order mark": b"\xef\xbb\xbf" + GOOD_BODY,
    "utf-16": GOOD_BODY.decode().encode("utf-16"),
    "utf-16 little": GOOD_BODY.decode().encode("utf-16-le"),
    "utf-32": GOOD_BODY.decode().encode("utf-32"),
    "latin-1 outside strings": b'{"gamma":7,\xe9"rows":[]}',
    "broken utf-8 in a key": b'{"gam\xffma":7,"rows":[]}',
    "no-break space": b'{"gamma":7,\xc2\xa0"rows":[]}',
    "number with zero in front": NOT_STRICT % b'{"verified":05}',
    "number with plus": NOT_STRICT % b'{"verified":+5}',
    "number with bare point": NOT_STRICT % b'{"verified":5.}',
    "number without whole part": NOT_STRICT % b'{"verified":.5}',
    "number with cut exponent": NOT_STRICT % b'{"verified":5e}',
    "hexadecimal number": NOT_STRICT % b'{"verified":0x5}',
    "octal number": NOT_STRICT % b'{"verified":0o5}',
    "number with underscore": NOT_STRICT % b'{"verified":1_0}',
    "two minus signs": NOT_STRICT % b'{"verified":--5}',
    "bare minus": NOT_STRICT % b'{"verified":-}',
    "python true": NOT_STRICT % b'{"explored":True}',
    "python none": NOT_STRICT % b'{"domain":None}',
    "undefined": NOT_STRICT % b'{"domain":undefined}',
    "lower-case nan": NOT_STRICT % b'{"confidence_logits":[nan]}',
    "signed nan": NOT_STRICT % b'{"confidence_logits":[+NaN]}',
    "short inf": NOT_STRICT % b'{"confidence_logits":[inf]}',
    "control character in a string": NOT_STRICT % b'{"domain":"a\nb"}',
    "unknown escape": NOT_STRICT % b'{"domain":"\\x41"}',
    "number as key": NOT_STRICT % b"{5:1}",
    "null as key": NOT_STRICT % b"{null:1}",
    "unbalanced brackets": b'{"gamma":7,"rows":[[[]]}',
    "crossed brackets": b'{"gamma":7,"rows":[{]}}',
    "deep lists": NOT_STRICT % (b"[" * 20_000 + b"]" * 20_000),
    "deep objects": NOT_STRICT % (b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
    "deep and never closed": b'{"gamma":7,"rows":' + b"[" * 100_000,
    "arrow stream called json": arrow_stream([GOOD], GAMMA),
    "gzip called json": gzip.compress(GOOD_BODY, mtime=0),
    "zip archive": b"PK\x03\x04" + bytes(40),
    "png": b"\x89PNG\r\n\x1a\n" + bytes(40),
    "xml": b"<rows gamma='7'/>",
    "csv": b"verified,accepted\n5,3\n",
    "form": b"gamma=7&verified=5",
    "yaml": b"gamma: 7\nrows: []\n",
}

# JSON of another form --------------------------------------------------------------------------

OTHER_FORM: dict[str, tuple[bytes, int]] = {
    "null": (b"null", 0),
    "true": (b"true", 0),
    "number": (b"7", 0),
    "string": (b'"rows"', 0),
    "list": (b"[]", 0),
    "list of rows": (json.dumps([GOOD]).encode(), 0),
    "one row alone": (json.dumps(GOOD).encode(), 0),
    "empty object": (b"{}", 0),
    "gamma alone": (b'{"gamma":7}', 0),
    "no rows": (json_rows([], GAMMA), 0),
    "rows null": (b'{"gamma":7,"rows":null}', 0),
    "rows number": (b'{"gamma":7,"rows":1}', 0),
    "rows string": (b'{"gamma":7,"rows":"[]"}', 0),
    "rows object": (b'{"gamma":7,"rows":{}}', 0),
    "columns null": (b'{"gamma":7,"columns":null}', 0),
    "columns list": (b'{"gamma":7,"columns":[]}', 0),
    "columns string": (b'{"gamma":7,"columns":"x"}', 0),
    "columns empty": (b'{"gamma":7,"columns":{}}', 0),
    "columns of no rows": (
        json_columns({"confidence_logits": [], "verified": [], "accepted": []}, GAMMA),
        0,
    ),
    "rows and columns": (json_rows([GOOD], GAMMA, columns={}), 0),
    "unknown member": (json_rows([GOOD], GAMMA, version=1), 0),
    "member in capitals": (b'{"Gamma":7,"Rows":[]}', 0),
    "gamma missing": (json.dumps({"rows": [GOOD]}).encode(), 1),
    "gamma null": (json_rows([GOOD], None), 1),
    "gamma true": (json_rows([GOOD], True), 1),
    "gamma text": (json_rows([GOOD], "7"), 1),
    "gamma float": (json_rows([GOOD], 7.0), 1),
    "gamma list": (json_rows([GOOD], [7]), 1),
    "gamma object": (json_rows([GOOD], {"gamma": 7}), 1),
    "gamma zero": (json_rows([GOOD], 0), 1),
    "gamma negative": (json_rows([GOOD], -7), 1),
    "gamma shorter": (json_rows([GOOD, GOOD], 6), 2),
    "gamma longer": (json_rows([GOOD, GOOD], 8), 2),
    "gamma enormous": (json_rows([GOOD], 10**400), 1),
    "gamma out of range": (GOOD_BODY.replace(b'"gamma": 7', b'"gamma": 1e999'), 1),
    "gamma nan": (json_rows([GOOD], float("nan")), 1),
    "gamma twice": (b'{"gamma":7,' + GOOD_BODY[1:], 1),
    "rows twice": (b'{"rows":[],' + GOOD_BODY[1:], 1),
    "both twice": (GOOD_BODY[:-1] + b"," + GOOD_BODY[1:], 1),
}

# Rows of which none is good --------------------------------------------------------------------

NO_NUMBERS: list[Any] = [True, False, "1.5", "", "NaN", [], [1.0], {}, {"value": 1.0}]

BAD_CELLS: dict[str, list[Any]] = {
    "confidence_logits": [
        None,
        *NO_NUMBERS,
        1.5,
        LOGITS[:6],
        [*LOGITS, 8.0],
        [],
        *([*LOGITS[:6], wrong] for wrong in [None, NAN, INFINITY, -INFINITY, 1e39, -1e300]),
        *([*LOGITS[:6], wrong] for wrong in [10**400, 10**39, *NO_NUMBERS]),
        [NAN] * 7,
        [[1.0]] * 7,
    ],
    "verified": [
        None,
        *NO_NUMBERS,
        NAN,
        INFINITY,
        5.0,
        5.5,
        1e400,
        -1,
        8,
        255,
        256,
        2**31,
        2**63,
        2**64,
        10**400,
        -(2**70),
    ],
    "accepted": [None, *NO_NUMBERS, NAN, 3.0, -1, 6, 8, 259, 2**32 + 3, 10**30],
    "revision": [*NO_NUMBERS, NAN, 1.0, -2, 2**31, 10**20],
    "explored": [0, 1, "true", "yes", [], {}, 1.0],
    "propensity": [*NO_NUMBERS, NAN, INFINITY, -0.1, 1.1, 1e400],
    "anticipating": [0, 1, "false", 0.0],
    "flags": [*NO_NUMBERS, -1, 32, 255, 256, 1.0, "warmup", ["warmup"]],
    "soft_labels": [0.5, "x", [0.5] * 6, [0.5] * 8, [1.5] * 7, [-0.1] * 7, [NAN] * 7, ["0.5"] * 7],
    "token_acceptance": [0.5, [2.0] * 7, [True] * 7, {}],
    "sampling_temperature": [*NO_NUMBERS, NAN, -0.5, INFINITY, 1e39],
    "context_length": [*NO_NUMBERS, -2, 1.5, 2**31],
    "domain": [
        True,
        5,
        1.5,
        [],
        {},
        "",
        "a\x00b",
        "a\tb",
        "line\nline",
        "\u202e",
        "\ud800",
        "x" * 257,
    ],
    "adapter": [0, ["lora"], "", "\x7f"],
    "acceptance_rule": ["", "magic", "Greedy", 1, True, ["greedy"]],
    "draft_mode": ["", "nucleus", None.__class__.__name__, 0],
    "scheduled": [*NO_NUMBERS, 4, 8, -1, 5.0, 300],
    "engine": [7, True, "", "a\nb", "x" * 300, ["e"]],
    "rank": ["0", -2, 0.5, 2**31, True],
    "step": ["1", -2, 1.0, 2**63, 10**40, False],
    "request": [1, "", "\u2028", {}, "y" * 257],
    "step_requests": ["4", -3, 4.0, 2**63],
    "timestamp": ["2026-01-01T00:00:00Z", NAN, -1.0, 1.7e12, True, INFINITY],
    "tenant": [1, "", "\u0007"],
    "prompt": [0, "", "z" * 257],
    "applied_form": ["", "linear", 1, "Affine"],
}

BAD_ROWS: dict[str, bytes] = {
    "null": b"null",
    "number": b"5",
    "string": b'"row"',
    "true": b"true",
    "list": b"[1,2,3]",
    "list of a row": b"[{%b}]" % REQUIRED,
    "empty object": b"{}",
    "no logits": b'{"verified":5,"accepted":3}',
    "no verified": b'{"confidence_logits":[1,2,3,4,5,6,7],"accepted":3}',
    "no accepted": b'{"confidence_logits":[1,2,3,4,5,6,7],"verified":5}',
    "unknown column": b'{%b,"logits":[1]}' % REQUIRED,
    "column in capitals": b'{%b,"Engine":"e"}' % REQUIRED,
    "empty name": b'{%b,"":1}' % REQUIRED,
    "name with a slash": b'{%b,"a/b~c":1}' % REQUIRED,
    "name of a prototype": b'{%b,"__proto__":{}}' % REQUIRED,
    "very long name": b'{%b,"%b":1}' % (REQUIRED, b"n" * 10_000),
    "name with half a surrogate": b'{%b,"\\ud800":1}' % REQUIRED,
    "verified twice": b'{%b,"verified":5}' % REQUIRED,
    "accepted twice, differing": b'{%b,"accepted":2}' % REQUIRED,
    "accepted twice, escaped": b'{%b,"\\u0061ccepted":3}' % REQUIRED,
    "logits twice": b'{%b,"confidence_logits":[1,2,3,4,5,6,7]}' % REQUIRED,
    "twice behind an escaped colon": b'{%b,"domain":"\\u003a","accepted":3}' % REQUIRED,
    "unknown twice": b'{%b,"x":1,"x":1}' % REQUIRED,
    "broken utf-8": b'{%b,"domain":"\xff\xfe"}' % REQUIRED,
    "overlong utf-8": b'{%b,"domain":"\xc0\x80"}' % REQUIRED,
    "surrogate in utf-8": b'{%b,"domain":"\xed\xa0\x80"}' % REQUIRED,
    "code point beyond unicode": b'{%b,"domain":"\xf4\x90\x80\x80"}' % REQUIRED,
    "1e400": b'{"confidence_logits":[1e400,2,3,4,5,6,7],"verified":5,"accepted":3}',
    "-1e400": b'{"confidence_logits":[-1e400,2,3,4,5,6,7],"verified":5,"accepted":3}',
    "exponent of many digits": b'{"confidence_logits":[1e%b,2,3,4,5,6,7],"verified":5,'
    b'"accepted":3}' % (b"9" * 400),
    "integer of many digits": b'{"confidence_logits":[%b,2,3,4,5,6,7],"verified":5,"accepted":3}'
    % (b"9" * 6000),
    "bare NaN": b'{"confidence_logits":[NaN,2,3,4,5,6,7],"verified":5,"accepted":3}',
    "bare Infinity": b'{"confidence_logits":[Infinity,2,3,4,5,6,7],"verified":5,"accepted":3}',
    "bare -Infinity": b'{"confidence_logits":[-Infinity,2,3,4,5,6,7],"verified":5,"accepted":3}',
    "NaN for a nullable number": b'{%b,"propensity":NaN}' % REQUIRED,
    "NaN for a text": b'{%b,"domain":NaN}' % REQUIRED,
    "anchor slot": b'{"confidence_logits":[0,1,2,3,4,5,6,7],"verified":5,"accepted":3}',
    "nested lists in a cell": b'{%b,"step":%b}' % (REQUIRED, b"[" * 90 + b"]" * 90),
    "r40 accepted negative": b'{"confidence_logits":[1,2,3,4,5,6,7],"verified":4,"accepted":-1}',
    "r40 accepted above verified": b'{"confidence_logits":[1,2,3,4,5,6,7],"verified":4,'
    b'"accepted":5}',
    "r40 verified above gamma": b'{"confidence_logits":[1,2,3,4,5,6,7],"verified":9,"accepted":4}',
}

BAD_COLUMNS: dict[str, dict[str, Any]] = {
    "missing logits": {"confidence_logits": None},
    "missing verified": {"verified": None},
    "missing accepted": {"accepted": None},
    "unknown": {"logits": [1, 2]},
    "short": {"verified": [5]},
    "long": {"accepted": [3, 3, 3]},
    "number": {"verified": 5},
    "text": {"verified": "55"},
    "object": {"domain": {"0": "code", "1": "code"}},
    "true": {"explored": True},
    "flat logits": {"confidence_logits": LOGITS},
    "ragged logits": {"confidence_logits": [LOGITS[:3], [*LOGITS, 8.0]]},
    "nan logits": {"confidence_logits": [[NAN] * 7] * 2},
    "text logits": {"confidence_logits": ["1.5", "2.5"]},
    "true lengths": {"verified": [True, True]},
    "text lengths": {"accepted": ["3", "3"]},
    "float lengths": {"accepted": [3.0, 3.0]},
    "null lengths": {"accepted": [None, None]},
}

# Codings and headers ---------------------------------------------------------------------------

GZIPPED = gzip.compress(GOOD_BODY, mtime=0)
ZSTANDARD = zstandard.ZstdCompressor(write_checksum=True).compress(GOOD_BODY)


def _flipped(data: bytes, place: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 0xFF
    return bytes(changed)


BROKEN_CODINGS: dict[str, tuple[str, bytes]] = {
    "gzip of nothing": ("gzip", b""),
    "gzip that is plain": ("gzip", GOOD_BODY),
    "gzip that is zstd": ("gzip", ZSTANDARD),
    "gzip that is bare deflate": ("gzip", zlib.compress(GOOD_BODY)),
    "gzip magic alone": ("gzip", GZIPPED[:2]),
    "gzip header alone": ("gzip", GZIPPED[:10]),
    "gzip cut in the middle": ("gzip", GZIPPED[: len(GZIPPED) // 2]),
    "gzip without its length": ("gzip", GZIPPED[:-4]),
    "gzip cut by a byte": ("gzip", GZIPPED[:-1]),
    "gzip with another checksum": ("gzip", _flipped(GZIPPED, -6)),
    "gzip with another length": ("gzip", _flipped(GZIPPED, -2)),
    "gzip damaged inside": ("gzip", _flipped(GZIPPED, 30)),
    "gzip with garbage behind": ("gzip", GZIPPED + b"garbage behind the end"),
    "gzip with a byte behind": ("gzip", GZIPPED + b"x"),
    "gzip with zeros behind": ("gzip", GZIPPED + bytes(8)),
    "gzip with a cut second member": ("gzip", GZIPPED + GZIPPED[:20]),
    "gzip of an unknown method": ("gzip", GZIPPED[:2] + b"\x07" + GZIPPED[3:]),
    "gzip twice": ("gzip", gzip.compress(GZIPPED, mtime=0)),
    "gzip of cut json": ("gzip", gzip.compress(GOOD_BODY[:-1], mtime=0)),
    "gzip of two documents": ("gzip", GZIPPED + GZIPPED),
    "zstd of nothing": ("zstd", b""),
    "zstd that is plain": ("zstd", GOOD_BODY),
    "zstd that is gzip": ("zstd", GZIPPED),
    "zstd magic alone": ("zstd", ZSTANDARD[:4]),
    "zstd cut in the middle": ("zstd", ZSTANDARD[: len(ZSTANDARD) // 2]),
    "zstd cut by a byte": ("zstd", ZSTANDARD[:-1]),
    "zstd with another checksum": ("zstd", _flipped(ZSTANDARD, -1)),
    "zstd damaged inside": ("zstd", _flipped(ZSTANDARD, 15)),
    "zstd with garbage behind": ("zstd", ZSTANDARD + b"garbage behind the end"),
    "zstd with a byte behind": ("zstd", ZSTANDARD + b"x"),
    "zstd with a cut second frame": ("zstd", ZSTANDARD + ZSTANDARD[:9]),
    "zstd of a huge window": ("zstd", b"\x28\xb5\x2f\xfd\x00\xf8" + ZSTANDARD[6:]),
    "zstd of a skippable frame alone": ("zstd", struct.pack("<II", 0x184D2A50, 4) + b"skip"),
    "zstd of two documents": ("zstd", ZSTANDARD + ZSTANDARD),
}

_TYPE = ("Content-Type", JSON)
_CODED = ("Content-Encoding", "gzip")

BAD_HEADERS: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "no content type": ((), "unsupported-media-type"),
    "empty content type": ((("Content-Type", ""),), "unsupported-media-type"),
    "text": ((("Content-Type", "text/plain"),), "unsupported-media-type"),
    "form": ((("Content-Type", "application/x-www-form-urlencoded"),), "unsupported-media-type"),
    "multipart": ((("Content-Type", "multipart/form-data; boundary=x"),), "unsupported-media-type"),
    "json lines": ((("Content-Type", "application/x-ndjson"),), "unsupported-media-type"),
    "parquet": ((("Content-Type", "application/vnd.apache.parquet"),), "unsupported-media-type"),
    "arrow file": (
        (("Content-Type", "application/vnd.apache.arrow.file"),),
        "unsupported-media-type",
    ),
    "text json": ((("Content-Type", "text/json"),), "unsupported-media-type"),
    "any": ((("Content-Type", "*/*"),), "unsupported-media-type"),
    "type without subtype": ((("Content-Type", "application"),), "unsupported-media-type"),
    "two content types": ((_TYPE, ("Content-Type", ARROW)), "unsupported-media-type"),
    "json in latin-1": (
        (("Content-Type", f"{JSON}; charset=iso-8859-1"),),
        "unsupported-media-type",
    ),
    "json in utf-16": ((("Content-Type", f"{JSON}; charset=utf-16"),), "unsupported-media-type"),
    "json in no charset": ((("Content-Type", f"{JSON}; charset="),), "unsupported-media-type"),
    "deflate": ((_TYPE, ("Content-Encoding", "deflate")), "unsupported-media-type"),
    "brotli": ((_TYPE, ("Content-Encoding", "br")), "unsupported-media-type"),
    "compress": ((_TYPE, ("Content-Encoding", "compress")), "unsupported-media-type"),
    "unknown coding": ((_TYPE, ("Content-Encoding", "snappy")), "unsupported-media-type"),
    "two codings": ((_TYPE, ("Content-Encoding", "gzip, zstd")), "unsupported-media-type"),
    "gzip twice over": ((_TYPE, ("Content-Encoding", "gzip, gzip")), "unsupported-media-type"),
    "two coding headers": ((_TYPE, _CODED, _CODED), "unsupported-media-type"),
    "coding with a weight": ((_TYPE, ("Content-Encoding", "gzip;q=1")), "unsupported-media-type"),
    "gzip that is not": ((_TYPE, _CODED), "unreadable-request"),
    "gzip by its old name that is not": (
        (_TYPE, ("Content-Encoding", "X-GZIP")),
        "unreadable-request",
    ),
    "empty idempotency key": ((_TYPE, ("Idempotency-Key", "")), "invalid-request"),
    "blank idempotency key": ((_TYPE, ("Idempotency-Key", " ")), "invalid-request"),
    "long idempotency key": ((_TYPE, ("Idempotency-Key", "k" * 256)), "invalid-request"),
    "very long idempotency key": ((_TYPE, ("Idempotency-Key", "k" * 5000)), "invalid-request"),
    "idempotency key with a space": ((_TYPE, ("Idempotency-Key", "a b")), "invalid-request"),
    "idempotency key with a tab": ((_TYPE, ("Idempotency-Key", "a\tb")), "invalid-request"),
    "idempotency key beyond ascii": ((_TYPE, ("Idempotency-Key", "schlüssel")), "invalid-request"),
    "two idempotency keys": (
        (_TYPE, ("Idempotency-Key", "a"), ("Idempotency-Key", "b")),
        "invalid-request",
    ),
    "the same idempotency key twice": (
        (_TYPE, ("Idempotency-Key", "a"), ("Idempotency-Key", "a")),
        "invalid-request",
    ),
}

BAD_QUERIES: dict[str, str] = {
    "empty engine": "engine=",
    "long engine": "engine=" + "e" * 257,
    "engine with a line break": "engine=a%0Ab",
    "engine with a null byte": "engine=a%00b",
    "engine with an escape": "engine=%1B%5B31m",
    "engine of broken utf-8": "engine=%80%0D",
}

BAD_DRAFTERS: dict[str, tuple[str, str]] = {
    "unknown": ("nobody", "drafter-not-found"),
    "capitals": ("CODE", "invalid-request"),
    "leading dot": (".code", "invalid-request"),
    "space": ("a%20b", "invalid-request"),
    "null byte": ("a%00b", "invalid-request"),
    "beyond ascii": ("caf%C3%A9", "invalid-request"),
    "too long": ("d" * 129, "invalid-request"),
    "quote": ("a'%3B--", "invalid-request"),
}


def _requests() -> Iterator[MalformedRequest]:
    arrow = (("Content-Type", ARROW),)
    for name, body in NO_JSON.items():
        yield MalformedRequest(f"no json: {name}", body, "unreadable-request")
    for name, (body, rows) in OTHER_FORM.items():
        yield MalformedRequest(f"other form: {name}", body, "invalid-request", rows)
    for column, cells in BAD_CELLS.items():
        for number, cell in enumerate(cells):
            body = json_rows([GOOD | {column: cell}] * 2, GAMMA)
            yield MalformedRequest(
                f"cell: {column} {number} {cell!r:.30}", body, "no-valid-rows", 2
            )
    for name, text in BAD_ROWS.items():
        yield MalformedRequest(f"row: {name}", NOT_STRICT % text, "no-valid-rows", 1)
    for name, change in BAD_COLUMNS.items():
        columns = columns_of([GOOD, GOOD]) | change
        body = json_columns({n: c for n, c in columns.items() if c is not None}, GAMMA)
        rows = 3 if name == "long" else 7 if name == "flat logits" else 2
        yield MalformedRequest(f"columns: {name}", body, "no-valid-rows", rows)
    for name, body in NO_STREAM.items():
        yield MalformedRequest(f"no stream: {name}", body, "unreadable-request", headers=arrow)
    for name, (body, rows) in OTHER_STREAM.items():
        yield MalformedRequest(f"other stream: {name}", body, "invalid-request", rows, arrow)
    for name, body in BAD_STREAM_ROWS.items():
        yield MalformedRequest(f"stream: {name}", body, "no-valid-rows", 2, arrow)
    for name, (coding, body) in BROKEN_CODINGS.items():
        headers = (_TYPE, ("Content-Encoding", coding))
        yield MalformedRequest(f"coding: {name}", body, "unreadable-request", headers=headers)
    for name, (headers, slug) in BAD_HEADERS.items():
        yield MalformedRequest(f"headers: {name}", GOOD_BODY, slug, headers=headers)
    for name, query in BAD_QUERIES.items():
        yield MalformedRequest(f"query: {name}", GOOD_BODY, "invalid-request", query=query)
    for name, (drafter, slug) in BAD_DRAFTERS.items():
        yield MalformedRequest(f"drafter: {name}", GOOD_BODY, slug, drafter=drafter)


@cache
def malformed_requests() -> tuple[MalformedRequest, ...]:
    """The whole corpus."""
    return tuple(_requests())
