"""Large request bodies: read piece by piece, decompressed, and never larger than allowed.

The limits hold for what is sent and, separately, for what it becomes. Decompression stops at the
first byte too many, so a small body that unfolds without end costs no more than an honest one.
Several gzip members or zstd frames in one body are one text, as their formats say; anything else
after the end is a fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from api.problems import FieldError, ProblemError

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request

__all__ = ["CODINGS", "BodyForm", "BodyLimits", "body_form", "decompressed", "received"]

CODINGS: Final = ("gzip", "zstd", "identity")
_ALIASES: Final = {"x-gzip": "gzip"}
# What each coding begins with; zstd may begin with a skippable frame, which has 16 numbers.
_MAGIC: Final = {
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))),
}
_PIECE_BYTES: Final = 2**20
_SILENT_SECONDS: Final = 30.0  # between two pieces of a body
# What remains of a refused body is not read, so the connection cannot be used again.
_CLOSE: Final = {"Connection": "close"}

Count = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class BodyForm:
    """How a body is written.

    Attributes:
        media_type: without parameters, in lower case.
        coding: ``"gzip"``, ``"zstd"`` or ``"identity"``.
    """

    media_type: str
    coding: str


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large a body may be, and how slow.

    Attributes:
        sent: most bytes as they are sent.
        decompressed: most bytes after decompression.
        silent_seconds: longest pause between two pieces.
    """

    sent: int
    decompressed: int
    silent_seconds: float = _SILENT_SECONDS


def body_form(headers: Headers, media_types: Sequence[str]) -> BodyForm:
    """How the body is written, as its headers say.

    Args:
        headers: of the request.
        media_types: what is read here.

    Raises:
        ProblemError: 415 for no or another media type, another character set, and another, or
            more than one, content coding.
    """
    given = headers.getlist("content-type")
    media_type, *parameters = (part.strip().lower() for part in ",".join(given).split(";"))
    if media_type not in media_types or not all(map(_says_utf8, filter(None, parameters))):
        raise ProblemError(
            "unsupported-media-type",
            f"The Content-Type {', '.join(given)[:80]!r} is not read here.",
            headers={"Accept-Post": ", ".join(media_types), **_CLOSE},
            supported=list(media_types),
        )
    return BodyForm(media_type, _coding(headers))


def _says_utf8(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() != "charset" or value.strip().strip('"') in ("utf-8", "utf8")


def _coding(headers: Headers) -> str:
    given = ",".join(headers.getlist("content-encoding"))
    named = [part.strip().lower() for part in given.split(",")]
    codings = [_ALIASES.get(name, name) for name in named if name not in ("", "identity")]
    if not codings:
        return "identity"
    if len(codings) == 1 and codings[0] in CODINGS:
        return codings[0]
    raise ProblemError(
        "unsupported-media-type",
        f"The Content-Encoding {given[:80]!r} is not read here; one coding is.",
        headers={"Accept-Encoding": ", ".join(CODINGS), **_CLOSE},
        supported=list(CODINGS),
    )


async def received(request: Request, limits: BodyLimits, count: Count) -> bytes:
    """The body as it was sent.

    Args:
        request: whose body was not read yet.
        limits: how large and how slow it may be.
        count: called with the size of each piece before it is kept; may raise to refuse it.

    Raises:
        ProblemError: 413 when it is, or is announced to be, too large; 400 when it ends early,
            late, or does not go on.
    """
    from starlette.requests import ClientDisconnect

    announced = _announced(request.headers)
    if announced is not None and announced > limits.sent:
        raise _too_large(limits.sent)
    pieces: list[bytes] = []
    size = 0
    stream = aiter(request.stream())
    try:
        while True:
            async with asyncio.timeout(limits.silent_seconds):
                piece = await anext(stream, None)
            if piece is None:
                break
            size += len(piece)
            if size > limits.sent:
                raise _too_large(limits.sent)
            count(len(piece))
            pieces.append(piece)
    except ProblemError as error:
        error.headers |= _CLOSE
        raise
    except ClientDisconnect as error:
        raise _unreadable("The body was cut short.") from error
    except TimeoutError as error:
        raise _unreadable(
            f"The body did not go on for {limits.silent_seconds:g} seconds."
        ) from error
    if announced is not None and announced != size:
        raise _unreadable(f"Content-Length announces {announced} bytes, and {size} came.")
    return b"".join(pieces)


def _announced(headers: Headers) -> int | None:
    """What Content-Length says; None without one, as in a chunked body.

    Raises:
        ProblemError: 400, it is no number, or two numbers.
    """
    given = set(headers.getlist("content-length"))
    if not given:
        return None
    value = given.pop()
    if given or not (value.isascii() and value.isdecimal() and len(value) < 20):
        fault = FieldError("header:content-length", "give one decimal number")
        raise ProblemError(
            "unreadable-request", "Content-Length is no number.", errors=[fault], headers=_CLOSE
        )
    return int(value)


def decompressed(data: bytes, coding: str, limit: int, count: Count) -> bytes:
    """The body without its coding; takes processor time, so call it in a thread.

    Args:
        data: as received.
        coding: of :class:`BodyForm`.
        limit: most bytes of the result.
        count: called with the size of each piece before it is kept; may raise to refuse it.

    Raises:
        ProblemError: 413 when it becomes too large; 400 when it is damaged, cut short, or followed
            by something else.
    """
    if coding == "identity":
        if len(data) > limit:
            raise _too_large(limit)
        return data
    if not data.startswith(_MAGIC[coding]):  # Arrow would take zlib's own format for gzip too
        raise _unreadable(f"The body is no {coding}.")
    pieces: list[bytes] = []
    size = 0
    try:
        # Raises at a truncated end and at foreign bytes after it; knows members and frames.
        with pa.CompressedInputStream(pa.BufferReader(data), coding) as stream:
            while piece := stream.read(_PIECE_BYTES):
                size += len(piece)
                if size > limit:
                    raise _too_large(limit)
                count(len(piece))
                pieces.append(piece)
    except (pa.ArrowException, OSError, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise _unreadable(f"The body is no whole {coding}: {reason}.") from error
    return b"".join(pieces)


def _too_large(limit: int) -> ProblemError:
    detail = f"At most {limit} bytes are read, before and after decompression."
    return ProblemError("content-too-large", detail, headers=_CLOSE, limit_bytes=limit)


def _unreadable(detail: str) -> ProblemError:
    return ProblemError("unreadable-request", detail)
