"""Bodies: as large as allowed and no larger, before and after decompression."""

from __future__ import annotations

import asyncio
import gzip
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from starlette.datastructures import Headers
from starlette.requests import Request

from api.problems import ProblemError
from api.request_bodies import BodyLimits, body_form, decompressed, received

MIB = 2**20


def form(content_type: str | None, *codings: str) -> tuple[str, str]:
    raw = [] if content_type is None else [(b"content-type", content_type.encode("latin-1"))]
    raw += [(b"content-encoding", coding.encode()) for coding in codings]
    found = body_form(Headers(raw=raw), ("application/json", "application/x"))
    return found.media_type, found.coding


class Pieces:
    """An ASGI receive channel; ends with a disconnect where ``cut``, and with silence after all."""

    def __init__(self, *pieces: bytes, cut: bool = False) -> None:
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
        ]
        if cut:
            self._messages.append({"type": "http.disconnect"})
        else:
            self._messages[-1]["more_body"] = False
        self.read = 0

    async def __call__(self) -> dict[str, Any]:
        if self.read == len(self._messages):
            await asyncio.Event().wait()
        self.read += 1
        return self._messages[self.read - 1]


def receive(
    channel: Pieces,
    *headers: tuple[str, str],
    count: Callable[[int], None] = lambda _: None,
    **limits: Any,
) -> bytes:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    request = Request({"type": "http", "method": "POST", "headers": raw}, channel)
    return asyncio.run(
        received(request, BodyLimits(**{"sent": 100, "decompressed": 100} | limits), count)
    )


class TestForm:
    @pytest.mark.parametrize(
        ("content_type", "codings", "expected"),
        [
            ("application/json", (), "identity"),
            ("APPLICATION/JSON; charset=UTF-8", (), "identity"),
            ('application/json;charset="utf-8"', ("identity",), "identity"),
            ("application/json; profile=x", ("",), "identity"),
            ("application/json", ("gzip",), "gzip"),
            ("application/json", ("X-GZip",), "gzip"),
            ("application/json", ("identity, zstd",), "zstd"),
        ],
    )
    def test_read(self, content_type: str, codings: tuple[str, ...], expected: str) -> None:
        assert form(content_type, *codings) == ("application/json", expected)

    @pytest.mark.parametrize(
        ("content_type", "codings", "supported"),
        [
            (None, (), "application/json"),
            ("", (), "application/json"),
            ("text/plain", (), "application/json"),
            ("application/json; charset=latin-1", (), "application/json"),
            ("application/json, text/plain", (), "application/json"),
            ("application/json", ("br",), "gzip"),
            ("application/json", ("gzip", "gzip"), "gzip"),
            ("application/json", ("gzip, zstd",), "gzip"),
            ("application/json", ("gzip;q=1",), "gzip"),
        ],
    )
    def test_refused(
        self, content_type: str | None, codings: tuple[str, ...], supported: str
    ) -> None:
        with pytest.raises(ProblemError) as caught:
            form(content_type, *codings)
        assert caught.value.kind.status == 415
        assert supported in caught.value.extensions["supported"]


class TestReceived:
    def test_pieces_are_joined_and_counted(self) -> None:
        counted: list[int] = []
        body = receive(Pieces(b"ab", b"", b"cde"), count=counted.append)
        assert (body, sum(counted)) == (b"abcde", 5)

    def test_an_announced_length_beyond_the_limit_is_refused_unread(self) -> None:
        channel = Pieces(b"x" * 101)
        with pytest.raises(ProblemError) as caught:
            receive(channel, ("content-length", "101"))
        assert (caught.value.kind.status, channel.read) == (413, 0)
        assert caught.value.extensions["limit_bytes"] == 100
        assert caught.value.headers["Connection"] == "close"

    def test_a_body_without_length_is_cut_off_at_the_limit(self) -> None:
        channel = Pieces(*[b"x" * 60] * 10)
        counted: list[int] = []
        with pytest.raises(ProblemError) as caught:
            receive(channel, count=counted.append)
        assert (caught.value.kind.status, channel.read, sum(counted)) == (413, 2, 60)

    def test_the_limit_itself_is_allowed(self) -> None:
        assert len(receive(Pieces(b"x" * 100), ("content-length", "100"))) == 100

    @pytest.mark.parametrize("length", ["4", "6", "0"])
    def test_a_length_that_lies_is_refused(self, length: str) -> None:
        with pytest.raises(ProblemError) as caught:
            receive(Pieces(b"abcde"), ("content-length", length))
        assert caught.value.kind.status == 400

    @pytest.mark.parametrize("length", ["", "-5", "5.0", "0x5", "five", "²", "9" * 30])
    def test_a_length_that_is_no_number_is_refused(self, length: str) -> None:
        with pytest.raises(ProblemError) as caught:
            receive(Pieces(b"abcde"), ("content-length", length))
        assert caught.value.kind.status == 400

    def test_two_lengths_are_refused(self) -> None:
        with pytest.raises(ProblemError):
            receive(Pieces(b"abcde"), ("content-length", "5"), ("content-length", "6"))

    def test_a_sender_that_goes_away(self) -> None:
        with pytest.raises(ProblemError) as caught:
            receive(Pieces(b"ab", cut=True))
        assert caught.value.kind.slug == "unreadable-request"

    def test_a_sender_that_falls_silent(self) -> None:
        channel = Pieces(b"ab", b"cd")
        channel._messages[-1]["more_body"] = True
        with pytest.raises(ProblemError, match="did not go on"):
            receive(channel, silent_seconds=0.05)

    def test_a_refusal_while_counting_ends_the_connection(self) -> None:
        def refuse(_: int) -> None:
            raise ProblemError("too-many-requests", "full")

        with pytest.raises(ProblemError) as caught:
            receive(Pieces(b"ab"), count=refuse)
        assert caught.value.headers["Connection"] == "close"


TEXT = b'{"gamma": 7}' * 1000
GZIPPED = gzip.compress(TEXT, mtime=0)
ZSTANDARD = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT)
SKIPPABLE = struct.pack("<II", 0x184D2A53, 4) + b"skip"


def unfold(
    data: bytes, coding: str, limit: int = MIB, count: Callable[[int], None] = lambda _: None
) -> bytes:
    return decompressed(data, coding, limit, count)


class TestDecompressed:
    @pytest.mark.parametrize(
        ("coding", "data", "expected"),
        [
            ("identity", TEXT, TEXT),
            ("identity", b"", b""),
            ("gzip", GZIPPED, TEXT),
            ("gzip", GZIPPED + gzip.compress(b"more", mtime=0), TEXT + b"more"),
            ("gzip", gzip.compress(b"", mtime=0), b""),
            ("gzip", gzip.compress(b"", mtime=0) * 5000 + GZIPPED, TEXT),
            ("zstd", ZSTANDARD, TEXT),
            ("zstd", ZSTANDARD + ZSTANDARD, TEXT + TEXT),
            ("zstd", SKIPPABLE + ZSTANDARD + SKIPPABLE, TEXT),
            ("zstd", zstandard.compress(b""), b""),
        ],
    )
    def test_read(self, coding: str, data: bytes, expected: bytes) -> None:
        counted: list[int] = []
        assert unfold(data, coding, count=counted.append) == expected
        assert sum(counted) == (0 if coding == "identity" else len(expected))

    @pytest.mark.parametrize(
        ("coding", "data"),
        [
            ("gzip", b""),
            ("gzip", TEXT),
            ("gzip", zlib.compress(TEXT)),
            ("gzip", GZIPPED[:-1]),
            ("gzip", GZIPPED[:12]),
            ("gzip", GZIPPED + b"x"),
            ("gzip", GZIPPED + TEXT),
            ("gzip", GZIPPED + GZIPPED[:-1]),
            ("gzip", GZIPPED[:-5] + b"\x00" + GZIPPED[-4:]),
            ("zstd", b""),
            ("zstd", TEXT),
            ("zstd", ZSTANDARD[:-1]),
            ("zstd", ZSTANDARD[:8]),
            ("zstd", ZSTANDARD + b"x"),
            ("zstd", ZSTANDARD + TEXT),
            ("zstd", ZSTANDARD[:-1] + b"\x00"),
        ],
    )
    def test_damage_is_unreadable(self, coding: str, data: bytes) -> None:
        with pytest.raises(ProblemError) as caught:
            unfold(data, coding)
        assert caught.value.kind.slug == "unreadable-request"

    @pytest.mark.parametrize("coding", ["identity", "gzip", "zstd"])
    def test_the_limit_holds_for_what_comes_out(self, coding: str) -> None:
        data = {"identity": TEXT, "gzip": GZIPPED, "zstd": ZSTANDARD}[coding]
        assert unfold(data, coding, limit=len(TEXT)) == TEXT
        with pytest.raises(ProblemError) as caught:
            unfold(data, coding, limit=len(TEXT) - 1)
        assert caught.value.kind.status == 413

    @pytest.mark.parametrize(
        "bomb",
        [
            pytest.param(("gzip", gzip.compress(bytes(64 * MIB), 1, mtime=0)), id="gzip"),
            pytest.param(("zstd", zstandard.compress(bytes(256 * MIB))), id="zstd"),
        ],
    )
    def test_a_bomb_costs_no_more_than_the_limit(self, bomb: tuple[str, bytes]) -> None:
        coding, data = bomb
        counted: list[int] = []
        started = time.process_time()
        with pytest.raises(ProblemError) as caught:
            unfold(data, coding, limit=2 * MIB, count=counted.append)
        assert caught.value.kind.status == 413
        assert sum(counted) <= 2 * MIB
        assert time.process_time() - started < 2.0

    def test_counting_can_refuse(self) -> None:
        def refuse(count: int) -> None:
            raise ProblemError("too-many-requests", str(count))

        with pytest.raises(ProblemError, match="too-many"):
            unfold(GZIPPED, "gzip", count=refuse)
