"""A route whose JSON body is read within limits, after the caller has been recognised."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.auth import authenticated
from api.problems import ProblemError

__all__ = ["JsonRoute", "read_json_body"]

_JSON = "application/json"


class JsonRoute(APIRoute):
    """FastAPI's route, with the checks that it leaves out: 401 first, then 415 and 413."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, given a body that has been read already."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler

        async def with_body(request: Request) -> Response:
            await authenticated(request)
            limit = request.app.state.settings.max_json_bytes
            # Where Starlette keeps a body that was read: FastAPI then finds it there.
            request._body = await read_json_body(request, limit)
            return await handler(request)

        return with_body


async def read_json_body(request: Request, limit: int) -> bytes:
    """The body of a request, empty or declared as JSON.

    Args:
        request: whose body was not read yet.
        limit: most bytes.

    Raises:
        ProblemError: 413 beyond ``limit``, 415 for another media type or an encoded body, 400 when
            the client went away.
    """
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect as error:
        raise ProblemError("unreadable-request", "The body was cut short.") from error
    if body:
        _check_media_type(request)
    return bytes(body)


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    subtype = given.removeprefix("application/")
    if subtype == given or not (subtype == "json" or subtype.endswith("+json")):
        detail = f"Send {_JSON}; got {given[:80]!r}."
        raise ProblemError("unsupported-media-type", detail, supported=[_JSON])
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        detail = f"Send the body as it is; got Content-Encoding {encoding[:80]!r}."
        raise ProblemError("unsupported-media-type", detail, supported=["identity"])


def _too_large(limit: int) -> ProblemError:
    # The rest of the body is not read, so the connection cannot be used again.
    headers = {"Connection": "close"}
    detail = f"At most {limit} bytes are read."
    return ProblemError("content-too-large", detail, headers=headers, limit_bytes=limit)
