"""Whether a drafter's champion is still calibrated, as the worker last found."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.conditional import none_match, strong_tag
from api.database_calls import read
from api.documentation import describe, header, outcomes
from api.drift_schemas import DriftDocument, collecting_document
from api.json_route import JsonRoute
from api.parameters import DrafterName, IfNoneMatch
from monitoring.store import monitor_states
from monitoring.store.drafter_rows import state_of
from monitoring.store.publications import current_publication

__all__ = ["drift_bytes", "router"]

router = APIRouter(prefix="/v1/drafters/{drafter}", tags=["drafters"], route_class=JsonRoute)


@router.get(
    "/drift",
    name="get_drift",
    responses=outcomes(
        {
            200: describe(
                DriftDocument,
                "Evidence against thresholds; `collecting` before the worker has read a row.",
                ETag=header("SHA-256 of the document"),
            ),
            304: {"description": "Nothing was folded since."},
        },
        "drafter-not-found",
    ),
)
async def get_drift(
    request: Request,
    drafter: DrafterName,
    _: Annotated[Principal, Depends(require("read:reports"))],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Evidence of drift by position and segment, change points, the challenger and the watch."""
    document = await read(request, lambda connection: drift_bytes(connection, drafter))
    tag = strong_tag(document)
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if none_match(if_none_match, tag):
        return Response(document, headers=headers, media_type="application/json")
    return Response(status_code=304, headers=headers)


def drift_bytes(connection: Connection, drafter: str) -> bytes:
    """The stored document of a drafter, or the one that says that nothing is known yet.

    Raises:
        NotFoundError: no such drafter.
    """
    state = state_of(connection, drafter)
    stored = monitor_states.load_document(connection, drafter)
    if stored is not None:
        return stored.document
    published = current_publication(connection, drafter)
    return collecting_document(
        drafter,
        revision=state.aliases.champion,
        publication=published.number,
        published_at=published.published_at,
    )
