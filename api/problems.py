"""Every error leaves the service as an RFC 9457 problem, from one catalogue.

::

    {"type": "/problems/invalid-request", "title": …, "status": 422, "detail": …,
     "instance": "/v1/…", "request_id": …, "errors": [{"pointer": "#/temperatures/1", …}], …}

Handlers raise :class:`ProblemError`, or let the typed errors of the core and the store pass: they
are translated here. What nobody foresaw is a 500 without internals; the log has them under the
request id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import structlog
from starlette.responses import Response

from api.problem_catalogue import CATALOGUE, ProblemType, problem_type, slug_of_status
from calib.errors import CalibrationError, InvalidInputError
from monitoring.store.errors import (
    ConflictError,
    NotFoundError,
    PreconditionFailedError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.requests import Request

__all__ = [
    "CATALOGUE",
    "MEDIA_TYPE",
    "FieldError",
    "ProblemError",
    "ProblemType",
    "install_problem_handlers",
    "problem_of",
    "problem_response",
    "problem_type",
]

MEDIA_TYPE = "application/problem+json"

_LONGEST_DETAIL = 2000
_MOST_ERRORS = 100  # a batch of faults is read from the top; the rest repeats it
RETRY_SOON = {"Retry-After": "1"}
RETRY_LATER = {"Retry-After": "5"}


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault of a request.

    Attributes:
        pointer: JSON pointer into the body (``#/temperatures/1``), or ``query:gamma``,
            ``header:if-match``, ``path:drafter``.
        detail: what is wrong and what to do.
    """

    pointer: str
    detail: str


class ProblemError(Exception):
    """A problem to answer with.

    Attributes:
        kind: its type.
        detail: this occurrence, in a sentence.
        errors: faults by field.
        headers: headers of the answer, such as ``Retry-After``.
        extensions: further members with plain JSON values.
    """

    def __init__(
        self,
        slug: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        **extensions: Any,
    ) -> None:
        self.kind = problem_type(slug)
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})
        self.extensions = extensions
        super().__init__(f"{slug}: {detail}")


def problem_response(
    slug: str,
    detail: str,
    *,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
    instance: str | None = None,
    request_id: str | None = None,
    **extensions: Any,
) -> Response:
    """The answer for one problem; always valid JSON, ASCII only.

    Args:
        slug: a type of the catalogue.
        detail: this occurrence, in a sentence.
        errors: faults by field.
        headers: further headers.
        instance: path of the request.
        request_id: what the log knows the request by.
        **extensions: further members with plain JSON values.
    """
    kind = problem_type(slug)
    document: dict[str, Any] = {
        "type": kind.uri,
        "title": kind.title,
        "status": kind.status,
        "detail": detail[:_LONGEST_DETAIL],
    }
    if instance is not None:
        document["instance"] = instance[:_LONGEST_DETAIL]
    if request_id is not None:
        document["request_id"] = request_id
    if errors:
        document["errors"] = [asdict(error) for error in errors[:_MOST_ERRORS]]
    document |= extensions
    return Response(
        json.dumps(document, allow_nan=False),
        status_code=kind.status,
        headers={"Cache-Control": "no-store", **(headers or {})},
        media_type=MEDIA_TYPE,
    )


def problem_of(error: Exception) -> ProblemError:
    """The problem that an error raised on purpose stands for; ``internal-error`` for others."""
    if isinstance(error, ProblemError):
        return error
    for kind in type(error).__mro__:
        if kind in _TRANSLATIONS:
            return _TRANSLATIONS[kind](error)
    return ProblemError("internal-error", "An unforeseen fault. The log has the request id.")


def _not_found(error: Any) -> ProblemError:
    slug = f"{error.kind.replace(' ', '-')}-not-found"
    return ProblemError(slug if slug in CATALOGUE else "not-found", str(error))


def _invalid(error: Any) -> ProblemError:
    fault = FieldError(_pointer(error.field), str(error))
    return ProblemError("invalid-request", str(error), errors=[fault])


def _unavailable(_: Any) -> ProblemError:
    # The reason may name hosts and files, which a client need not know.
    detail = "The database cannot be used right now."
    return ProblemError("store-unavailable", detail, headers=RETRY_LATER)


# By class, the most special first; what a class of errors has no entry for, its base has.
_TRANSLATIONS: dict[type, Callable[[Any], ProblemError]] = {
    NotFoundError: _not_found,
    ConflictError: lambda error: ProblemError("conflict", str(error)),
    PreconditionFailedError: lambda error: ProblemError("precondition-failed", str(error)),
    StoreBusyError: lambda error: ProblemError("store-busy", str(error), headers=RETRY_SOON),
    StoreFullError: lambda error: ProblemError("store-full", str(error)),
    StoreUnavailableError: _unavailable,
    StoreError: lambda _: ProblemError("internal-error", "The store refused. See the log."),
    InvalidInputError: _invalid,
    CalibrationError: lambda error: ProblemError("invalid-request", str(error)),
}


def install_problem_handlers(app: FastAPI) -> None:
    """Make ``app`` answer every error with a problem: typed, HTTP, validation and unforeseen."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    app.add_exception_handler(ProblemError, _answer)
    app.add_exception_handler(CalibrationError, _answer)
    app.add_exception_handler(HTTPException, _answer_http)
    app.add_exception_handler(RequestValidationError, _answer_validation)


async def _answer(request: Request, error: Exception) -> Response:
    return respond(request, problem_of(error), cause=error)


def respond(request: Request, problem: ProblemError, cause: Exception | None = None) -> Response:
    """The answer for ``problem``, with the request's path and id; 5xx are also logged."""
    log = structlog.get_logger("api")
    if problem.kind.slug == "internal-error":
        log.error("request failed", detail=problem.detail, exc_info=cause)
    elif problem.kind.status >= 500:  # an outage: a trace for each request would hide it
        log.warning("request refused", problem=problem.kind.slug, reason=str(cause or problem))
    return problem_response(
        problem.kind.slug,
        problem.detail,
        errors=problem.errors,
        headers=problem.headers,
        instance=request.url.path,
        request_id=request.scope.get("state", {}).get("request_id"),
        **problem.extensions,
    )


async def _answer_http(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 500)
    headers = dict(getattr(error, "headers", None) or {})
    slug = slug_of_status(status)
    if status == 405:
        headers["Allow"] = ", ".join(allowed_methods(request))
    detail = {
        404: f"No call has the path {request.url.path}.",
        405: f"{request.method} is not possible here; Allow names what is.",
    }.get(status, str(getattr(error, "detail", "")))
    return respond(request, ProblemError(slug, detail, headers=headers), cause=error)


def allowed_methods(request: Request) -> list[str]:
    """Methods that the path of ``request`` takes, over all routes that share it; HEAD with GET."""
    from starlette.routing import Match

    allowed: set[str] = set()
    for method in ("GET", "PUT", "POST", "PATCH", "DELETE"):
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            allowed.add(method)
    if "GET" in allowed:
        allowed.add("HEAD")
    return sorted(allowed)


async def _answer_validation(request: Request, error: Exception) -> Response:
    found: RequestValidationError = error  # type: ignore[assignment]
    errors = [
        FieldError(_location(fault.get("loc", ())), str(fault.get("msg", "is not valid")))
        for fault in found.errors()
    ]
    if any(fault.get("type") == "json_invalid" for fault in found.errors()):
        return respond(request, ProblemError("unreadable-request", "The body is no JSON."))
    detail = "; ".join(f"{fault.pointer}: {fault.detail}" for fault in errors[:3])
    return respond(request, ProblemError("invalid-request", detail, errors=errors))


def _location(parts: Sequence[int | str]) -> str:
    """A JSON pointer for the body, ``place:name`` for parameters."""
    if not parts:
        return "#"
    place, *rest = parts
    if place != "body":
        return f"{place}:{'.'.join(map(str, rest))}"
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in rest)
    return "#" + "".join(f"/{part}" for part in escaped)


def _pointer(field: str) -> str:
    """A JSON pointer for a field of the core: ``temperatures[1]`` is ``#/temperatures/1``."""
    parts = field.replace("]", "").replace("[", ".").split(".")
    return _location(["body", *parts])
