"""uvicorn's HTTP parser with limits on what it gathers before a request exists.

The application sees a request only when its headers are complete. Until then nothing else bounds
their size or the time they take, and what cannot be parsed would be answered with plain text.
"""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.problems import problem_response
from api.request_context import (
    LARGEST_HEADERS,
    LARGEST_PATH,
    LARGEST_QUERY,
    SECURITY_HEADERS,
    accepted_request_id,
)

__all__ = ["HEAD_SECONDS", "LimitedHttpProtocol"]

HEAD_SECONDS = 20.0
"""Time in which the headers of a request must have come."""

# A connection closed with unread bytes is reset, and the answer may be lost with it: what still
# comes is read and dropped for this long.
_LINGER_SECONDS = 2.0

# Beyond these the application would refuse anyway; a little more, so that it gives the reason.
_MOST_HEADER_BYTES = 2 * LARGEST_HEADERS
_MOST_URL_BYTES = 2 * (LARGEST_PATH + LARGEST_QUERY)


class _TooLargeError(Exception):
    """Ends the parsing of a request."""


# An empty deque takes 0.7 kB, and thousands of connections are held that need none of theirs.
class _Pipeline(list[Any]):
    """Requests that wait for the one before on their connection, the newest first."""

    def appendleft(self, request: Any) -> None:
        """Add the newest."""
        self.insert(0, request)


class _Flow(FlowControl):
    """uvicorn's flow control, whose event is made when an answer first has to wait."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        vars(self).pop("_is_writable_event", None)

    @cached_property
    def _is_writable_event(self) -> asyncio.Event:  # type: ignore[override]
        event = asyncio.Event()
        event.set()
        return event


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes connections that send too much, or too slowly, in front of the first body byte."""

    # Not in the instance's dictionary: with more than thirty keys it would no longer share them
    # with the others, which costs a connection 1 kB.
    __slots__ = ("_fault", "_gathered", "_head_timer", "_refused")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self._gathered = 0
        self._fault = "unreadable-request"
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_missing)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what comes, unless the connection is refused already."""
        if not self._refused:
            super().data_received(data)

    def on_message_begin(self) -> None:
        """Start the clock of a further request on this connection."""
        super().on_message_begin()
        self._gathered = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_missing)

    def on_url(self, url: bytes) -> None:
        """Count the address."""
        self._count(len(url), _MOST_URL_BYTES, "uri-too-long")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header."""
        self._count(len(name) + len(value), _MOST_HEADER_BYTES, "headers-too-large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request over."""
        self._stop_clock()
        self._gathered = 0
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, or is too large, with a problem, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_clock()
        details = {
            "unreadable-request": "This is no HTTP request.",
            "uri-too-long": "The address is too long.",
            "headers-too-large": "The headers are too large.",
        }
        request_id = accepted_request_id(None)  # nothing of the request can be trusted
        answer = problem_response(self._fault, details[self._fault], request_id=request_id)
        lines = [b"HTTP/1.1 %d \r\n" % answer.status_code]
        for name, value in (*answer.raw_headers, *SECURITY_HEADERS, (b"connection", b"close")):
            lines.append(name + b": " + value + b"\r\n")
        self.transport.write(b"".join([*lines, b"\r\n", bytes(answer.body)]))
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def _count(self, size: int, limit: int, fault: str) -> None:
        self._gathered += size
        if self._gathered > limit:
            self._fault = fault
            raise _TooLargeError(fault)

    def _head_missing(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
