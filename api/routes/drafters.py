"""Register drafters and look at them; the ETag of one is what changes must name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.conditional import none_match
from api.database_calls import change, read
from api.documentation import describe, header, outcomes
from api.json_route import JsonRoute
from api.parameters import DrafterName, IfNoneMatch
from api.problems import ProblemError
from api.publication_feed import PublicationFeed
from api.publication_variants import Published
from api.schemas import DrafterPage, DrafterRegistration, DrafterView
from api.views import drafter_body, drafter_view, json_answer
from calib.calibration_key import CalibrationKey
from monitoring.published_document import document_maker
from monitoring.store import drafters, publications
from monitoring.store.drafter_rows import DrafterState, all_states, state_of
from monitoring.store.errors import ConflictError

__all__ = ["answer_drafter", "router"]

router = APIRouter(prefix="/v1/drafters", tags=["drafters"], route_class=JsonRoute)

_ETAG = header("what If-Match of a change must name")


def answer_drafter(state: DrafterState, status: int = 200) -> Response:
    """A drafter's representation with its ETag."""
    body, tag = drafter_body(state)
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    return Response(body, status_code=status, headers=headers, media_type="application/json")


@router.get(
    "",
    name="list_drafters",
    responses=outcomes({200: describe(DrafterPage, "Every drafter, by name.")}),
)
async def list_drafters(
    request: Request,
    _: Annotated[Principal, Depends(require("read:temperatures", "read:reports"))],
) -> Response:
    """Every registered drafter."""
    states = await read(request, all_states)
    return json_answer(DrafterPage(drafters=[drafter_view(state) for state in states]))


@router.get(
    "/{drafter}",
    name="get_drafter",
    responses=outcomes(
        {
            200: describe(DrafterView, "The drafter.", ETag=_ETAG),
            304: {"description": "Nothing has changed.", "headers": {"ETag": _ETAG}},
        },
        "drafter-not-found",
    ),
)
async def get_drafter(
    request: Request,
    drafter: DrafterName,
    _: Annotated[Principal, Depends(require("read:temperatures", "read:reports"))],
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A drafter with its aliases and its newest publication."""
    answer = answer_drafter(await read(request, lambda connection: state_of(connection, drafter)))
    tag = answer.headers["ETag"]
    if none_match(if_none_match, tag):
        return answer
    return Response(status_code=304, headers={"ETag": tag, "Cache-Control": "no-cache"})


@router.put(
    "/{drafter}",
    name="register_drafter",
    responses=outcomes(
        {
            200: describe(DrafterView, "It was registered with this key before.", ETag=_ETAG),
            201: describe(DrafterView, "Registered; it starts at identity.", ETag=_ETAG),
        },
        "drafter-key-conflict",
        "store-full",
        body=True,
    ),
)
async def register_drafter(
    request: Request,
    drafter: DrafterName,
    registration: DrafterRegistration,
    principal: Annotated[Principal, Depends(require("operate"))],
) -> Response:
    """Register a drafter with its calibration key; the same again changes nothing."""
    key = CalibrationKey.from_dict(registration.key.model_dump())
    valid_for = request.app.state.settings.valid_for_seconds

    def work(connection: Connection) -> tuple[DrafterState, Published, bool]:
        registered, created = drafters.register(
            connection,
            drafter,
            key,
            actor=principal.name,
            document=document_maker(valid_for),
            request_id=request.state.request_id,
            valid_for_seconds=valid_for,
        )
        published = Published(registered, publications.current_publication(connection, drafter))
        return state_of(connection, drafter), published, created

    try:
        state, published, created = await change(request, work)
    except ConflictError as error:
        raise ProblemError("drafter-key-conflict", str(error)) from error
    feed: PublicationFeed = request.app.state.feed
    feed.apply(published)
    return answer_drafter(state, 201 if created else 200)
