"""``GET /metrics``: for Prometheus, as text or OpenMetrics.

Like reports it needs the scope ``read:reports``; without tokens, on loopback, it needs none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import structlog
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from api.auth import Principal, require
from api.documentation import outcomes
from monitoring.store.errors import StoreError

if TYPE_CHECKING:
    from starlette.datastructures import State

__all__ = ["router"]

router = APIRouter(tags=["service"])

# Less than Prometheus waits by default: a database that hangs must not take this target down.
_PATIENCE_SECONDS = 3.0
_TEXT = {"schema": {"type": "string"}}
_EXPOSITION = {
    "description": "Every metric, in the form that Accept asks for.",
    "content": {"text/plain": _TEXT, "application/openmetrics-text": _TEXT},
}


@router.get(
    "/metrics",
    name="get_metrics",
    response_class=PlainTextResponse,
    responses=outcomes({200: _EXPOSITION}),
)
async def get_metrics(
    request: Request, _: Annotated[Principal, Depends(require("read:reports"))]
) -> Response:
    """Metrics of this process, and of the database as this process has read it lately."""
    await _refresh(request.app.state)
    # Thousands of lines take a while to write; polls go on meanwhile.
    render, accept = request.app.state.metrics.render, request.headers.get("accept")
    body, media_type = await asyncio.to_thread(render, accept)
    request.state.quiet = True
    headers = {"Content-Type": media_type, "Cache-Control": "no-store", "Vary": "Accept"}
    return Response(body, headers=headers)


async def _refresh(state: State) -> None:
    """Read the database when that is due; scrapes that come together share one reading."""
    reading: asyncio.Task[None] | None = getattr(state, "metrics_reading", None)
    if reading is None or reading.done():
        if not state.metrics.is_due:
            return
        reading = asyncio.ensure_future(_read(state))
        state.metrics_reading = reading
    await asyncio.wait([reading], timeout=_PATIENCE_SECONDS)


async def _read(state: State) -> None:
    try:
        await asyncio.to_thread(state.metrics.refresh, state.database)
    except StoreError as error:
        structlog.get_logger("api.metrics").warning("metrics not refreshed", reason=str(error))
