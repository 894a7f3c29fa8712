"""From a template to an answer: escaped, without a script or style of its own, and conditional."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from api.conditional import none_match
from api.dashboard import formats
from api.dashboard.assets import asset_url

if TYPE_CHECKING:
    from jinja2 import Environment
    from starlette.requests import Request

    from api.dashboard.session import Visitor

__all__ = ["LIVE_HEADER", "POLICY", "POLL_SECONDS", "answer_page", "environment", "page_response"]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline script or style, nothing from elsewhere."""

POLL_SECONDS: Final = 3
"""How often an open page asks whether it has changed."""

LIVE_HEADER: Final = "x-dashboard-live"
"""Sent by the script when it asks; such a request is not worth a log line."""

_TEMPLATES: Final = Path(__file__).parent / "templates"
_SMALLEST_GZIP: Final = 2048


@cache
def environment() -> Environment:
    """The templates, with everything that they may call."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 2 MiB, with the first page

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = ("ago", "count", "evidence", "moment", "plural", "points", "signed", "signed_points")
    made.filters |= {name: getattr(formats, name) for name in filters}
    made.globals |= {
        "asset_url": asset_url,
        "poll_seconds": POLL_SECONDS,
        "release": _release(),
    }
    return made


async def answer_page(
    request: Request,
    template: str,
    visitor: Visitor | None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **context: Any,
) -> Response:
    """A page, made off the event loop: a large one takes longer than a poll may wait.

    Args:
        request: what it answers.
        template: file of the template.
        visitor: for whom; None for whoever has not signed in.
        status: HTTP status.
        headers: further headers.
        **context: what the template shows.
    """
    if LIVE_HEADER in request.headers:
        request.scope["state"]["quiet"] = True
    body = await run_in_threadpool(
        environment().get_template(template).render, visitor=visitor, **context
    )
    return await run_in_threadpool(page_response, request, body, status, headers or {})


def page_response(
    request: Request, text: str, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer with this text: 304 when the caller has it, compressed when it is long."""
    body = text.encode()
    # Weak: the same page may be sent compressed or not.
    tag = f'W/"{hashlib.sha256(body).hexdigest()}"'
    sent = {
        "ETag": tag,
        "Cache-Control": "no-store",
        "Content-Security-Policy": POLICY,
        "Vary": "Accept-Encoding, Cookie",
        **(headers or {}),
    }
    matched = request.headers.get("if-none-match")
    if status == 200 and not none_match(matched, tag.removeprefix("W/")):
        return Response(status_code=304, headers=sent)
    if len(body) >= _SMALLEST_GZIP and "gzip" in request.headers.get("accept-encoding", ""):
        body = gzip.compress(body, compresslevel=4, mtime=0)
        sent["Content-Encoding"] = "gzip"
    return Response(body, status_code=status, headers=sent, media_type="text/html")


def _release() -> str:
    try:
        return version("dspark-calib")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "0"
