"""What every request gets: an id, limits, security headers, one log line, and an answer.

A plain ASGI middleware, because Starlette's ``BaseHTTPMiddleware`` costs a task per request.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Any

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import ProblemError, problem_of, respond

__all__ = [
    "LARGEST_HEADERS",
    "LARGEST_PATH",
    "LARGEST_QUERY",
    "SECURITY_HEADERS",
    "RequestContext",
    "accepted_request_id",
]

LARGEST_HEADERS = 32 * 1024
MOST_HEADERS = 128
LARGEST_PATH = 2048
LARGEST_QUERY = 8 * 1024

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Headers of every answer; a route may send a content security policy of its own."""

_POLICY = b"content-security-policy"
_WITHOUT_POLICY = tuple(item for item in SECURITY_HEADERS if item[0] != _POLICY)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")


def accepted_request_id(value: bytes | None) -> str:
    """The caller's request id when it is sane (letters, digits, ``._:/+=-``), else a new one."""
    if value is not None and _REQUEST_ID.fullmatch(value):
        return value.decode("ascii")
    return secrets.token_hex(16)


class RequestContext:
    """The outermost part of the application; see the module's description.

    HEAD is answered as GET without its body, for every path. ``scope["state"]`` holds
    ``request_id``, and ``head`` for a HEAD request; routes may add ``actor`` and ``quiet`` (a log
    line of level debug).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._log = structlog.get_logger("api.access")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens to it."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        try:
            fault = _limit_fault(scope)
            if fault is not None:
                await respond(Request(scope), fault)(exchange.scope, receive, exchange.send)
            else:
                await self._app(exchange.scope, receive, exchange.send)
        except Exception as error:  # noqa: BLE001  whatever a route raises becomes an answer
            await exchange.fail(error, receive)
        finally:
            exchange.log(self._log)


class _Exchange:
    """One request and its answer."""

    __slots__ = ("_head", "_method", "_send", "_started", "request_id", "scope", "status")

    def __init__(self, scope: Scope, send: Send) -> None:
        self.request_id = accepted_request_id(_header(scope["headers"], b"x-request-id"))
        self.scope = scope
        self.status = 500
        self._send = send
        self._started = time.perf_counter()
        self._method = scope["method"]
        self._head = self._method == "HEAD"
        # The server copies its own state for every request, so this is nobody else's.
        state = scope.setdefault("state", {})
        state["request_id"] = self.request_id
        if self._head:
            state["head"] = True
            # A copy: the server goes by its own scope when it leaves out the body.
            self.scope = {**scope, "method": "GET"}
        self.status = 0

    async def send(self, message: Message) -> None:
        """Add the headers that every answer has; drop the body of HEAD."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"]
            own_policy = any(name == _POLICY for name, _ in headers)
            message["headers"] = [
                *headers,
                *(_WITHOUT_POLICY if own_policy else SECURITY_HEADERS),
                (b"x-request-id", self.request_id.encode("ascii")),
            ]
        elif self._head and message["type"] == "http.response.body":
            if message.get("more_body", False):
                return
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def fail(self, error: Exception, receive: Receive) -> None:
        """Answer what no handler took, unless the answer has begun."""
        if self.status:
            structlog.get_logger("api").error(
                "answer broken off", request_id=self.request_id, exc_info=error
            )
            raise error
        problem = problem_of(error)
        await respond(Request(self.scope), problem, cause=error)(self.scope, receive, self.send)

    def log(self, log: Any) -> None:
        """One line per request."""
        state = self.scope["state"]
        write = log.debug if state.get("quiet") and self.status < 400 else log.info
        write(
            "request",
            method=self._method,
            path=self.scope["path"],
            status=self.status or None,  # none: the client went away, or the service ended
            milliseconds=round((time.perf_counter() - self._started) * 1000, 2),
            request_id=self.request_id,
            actor=state.get("actor"),
        )


def _header(headers: list[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    for name, value in headers:
        if name == wanted:
            return value
    return None


def _limit_fault(scope: Scope) -> ProblemError | None:
    """What is too long about a request, or None."""
    if len(scope["query_string"]) > LARGEST_QUERY or len(scope["path"]) > LARGEST_PATH:
        limit = f"at most {LARGEST_PATH} bytes of path and {LARGEST_QUERY} of query are read"
        return ProblemError("uri-too-long", f"The address is too long: {limit}.")
    headers = scope["headers"]
    size = sum(len(name) + len(value) for name, value in headers)
    if size > LARGEST_HEADERS or len(headers) > MOST_HEADERS:
        limit = f"at most {MOST_HEADERS} headers of {LARGEST_HEADERS} bytes in all are read"
        return ProblemError("headers-too-large", f"The headers are too large: {limit}.")
    return None
