"""``GET /v1/drafters/{drafter}/temperatures``: described here, answered by :mod:`api.poll`."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from api.auth import bearer_scheme
from api.documentation import describe, header, outcomes
from api.parameters import DrafterName, IfNoneMatch
from api.poll_query import POLL_PARAMETERS
from api.publication_variants import MEDIA_TYPES
from api.request_context import RequestContext
from api.schemas import PublicationDocument

__all__ = ["PATH", "PollFirst", "describe_poll"]

PATH = "/v1/drafters/{drafter}/temperatures"
_PATH: Final = re.compile(PATH.replace("{drafter}", "([^/]+)"))

_HEADERS = {
    "ETag": header("SHA-256 of the bytes of this variant (gamma, segment, media type)"),
    "Publication": header("number of the publication; only grows", kind="integer"),
    "Vary": header("`Accept`"),
    "Cache-Control": header("`no-cache, stale-if-error=86400`"),
    "Warning": header("present while the database is away: the last known publication"),
}
_STS_SCHEMA = {
    "type": "object",
    "required": ["temperatures"],
    "properties": {
        "temperatures": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}},
        "dataset": {"type": "string"},
        "num_samples": {"type": "integer", "minimum": 0},
        "ece_before": {"type": "array", "items": {"type": "number"}},
        "ece_after": {"type": "array", "items": {"type": "number"}},
    },
}
_STS_EXAMPLE = {
    "temperatures": [1.2, 1.1, 1.0, 1.0, 0.95, 0.9, 0.9],
    "dataset": "target-8b-dspark",
    "num_samples": 120000,
    "publication": 4,
    "revision": 3,
}
_EXAMPLE: dict[str, object] = {
    "affine": None,
    "derived_from_gamma": None,
    "digest": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    "drafter": "target-8b-dspark",
    "evidence": {},
    "fitted_at": "2026-11-29T12:00:00Z",
    "gamma": 3,
    "key": "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "label_kind": "hard",
    "method": "sts",
    "position_statuses": ["ok", "ok", "ok"],
    "publication": 4,
    "published_at": "2026-11-29T12:05:00.000Z",
    "revision": 3,
    "segment": None,
    "segments": None,
    "status": "fitted",
    "temperatures": [1.2, 1.1, 1.0],
    "valid_until": None,
}


def _described() -> dict[int | str, dict[str, object]]:
    found = describe(PublicationDocument, "The current publication.", **_HEADERS)
    found["content"] = {
        MEDIA_TYPES["json"]: {"example": _EXAMPLE},
        MEDIA_TYPES["sts"]: {"schema": _STS_SCHEMA, "example": _STS_EXAMPLE},
    }
    unchanged = {
        "description": "Nothing has changed; no body.",
        "headers": {name: _HEADERS[name] for name in ("ETag", "Publication", "Vary")},
    }
    return outcomes(
        {200: found, 304: unchanged},
        "drafter-not-found",
        "not-acceptable",
        "calibration-key-mismatch",
        "gamma-too-long",
        "overloaded",
    )


async def poll_temperatures(
    drafter: DrafterName,
    if_none_match: IfNoneMatch = None,
) -> None:
    """What an engine applies now; with `wait` and `If-None-Match`, when it changes.

    The ETag is the SHA-256 of the body, so it also proves that the body is whole. The answer for
    one revision is the same bytes on every replica and after a restart.
    """
    raise NotImplementedError  # a description only: the route's application answers


class PollFirst(FastAPI):
    """An application that answers polls past FastAPI's own layers, which have nothing to do there.

    They cost a held poll 6 kB of 21 (docs/decisions/0009), and an answered one processor time.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._polls = RequestContext(self.answer_poll)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            found = _PATH.fullmatch(scope["path"])
            if found is not None:
                scope["path_params"] = {"drafter": found[1]}
                await self._polls(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def answer_poll(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one poll, whose ``path_params`` name the drafter."""
        poll: ASGIApp = self.state.poll
        return poll(scope, receive, send)


def describe_poll(app: PollFirst) -> None:
    """Add the poll to the routes, for the documentation and for what other methods are told."""
    route = APIRoute(
        PATH,
        poll_temperatures,
        methods=["GET"],
        name="get_temperatures",
        operation_id="get_temperatures",
        tags=["engines"],
        response_model=None,
        responses=_described(),
        openapi_extra={
            "parameters": list(POLL_PARAMETERS),
            "security": [{bearer_scheme.scheme_name: []}],
        },
    )
    route.app = app.answer_poll
    app.router.routes.insert(0, route)
