"""When nobody is to be told: silences of alerts, each with an end, a reason and an audit row."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.database_calls import change, read
from api.documentation import describe, outcomes
from api.json_route import JsonRoute
from api.schemas import SilenceList, SilenceRequest, SilenceView
from api.views import json_answer
from monitoring.published_document import iso_time
from monitoring.store import silences
from monitoring.store.database import current_time

__all__ = ["router"]

router = APIRouter(prefix="/v1/silences", tags=["fleet"], route_class=JsonRoute)

SilenceId = Annotated[int, Path(ge=0, le=2**31 - 1, description="id of the silence")]


@router.get(
    "",
    name="list_silences",
    responses=outcomes({200: describe(SilenceList, "Silences, newest first.")}),
)
async def list_silences(
    request: Request,
    _: Annotated[Principal, Depends(require("read:reports"))],
    ended: Annotated[
        bool, Query(description="also those that have ended or were removed, up to 500")
    ] = False,
) -> Response:
    """What is not told at present."""

    def work(connection: Connection) -> SilenceList:
        now = current_time(connection)
        found = silences.list_silences(connection, over_too=ended)
        return SilenceList(silences=[_view(silence, now) for silence in found])

    return json_answer(await read(request, work))


@router.post(
    "",
    name="create_silence",
    status_code=201,
    responses=outcomes(
        {201: describe(SilenceView, "It holds from now on.")},
        "drafter-not-found",
        "store-full",
        body=True,
    ),
)
async def create_silence(
    request: Request,
    body: SilenceRequest,
    principal: Annotated[Principal, Depends(require("operate"))],
) -> Response:
    """Tell nobody of matching events for a while; events are recorded as ever.

    What still holds when the silence ends is told then. The end of an event is told to whoever
    heard of its beginning, also during the silence.
    """

    def work(connection: Connection) -> SilenceView:
        now = current_time(connection)
        silence = silences.add_silence(
            connection,
            starts_at=now,
            ends_at=now + body.duration_seconds,
            reason=body.reason,
            actor=principal.name,
            drafter=body.drafter,
            kind=body.kind,
            request_id=request.state.request_id,
        )
        return _view(silence, now)

    return json_answer(await change(request, work), status=201)


@router.delete(
    "/{silence}",
    name="remove_silence",
    responses=outcomes(
        {200: describe(SilenceView, "It is over; once more is the same.")},
        "silence-not-found",
        "store-full",
    ),
)
async def remove_silence(
    request: Request,
    silence: SilenceId,
    principal: Annotated[Principal, Depends(require("operate"))],
) -> Response:
    """End a silence early."""

    def work(connection: Connection) -> SilenceView:
        ended = silences.remove_silence(
            connection, silence, actor=principal.name, request_id=request.state.request_id
        )
        return _view(ended, current_time(connection))

    return json_answer(await change(request, work))


def _view(silence: silences.Silence, now: float) -> SilenceView:
    removed = silence.removed_at is not None
    return SilenceView(
        id=silence.id,
        drafter=silence.drafter,
        kind=silence.kind,
        state="removed" if removed else ("active" if now < silence.ends_at else "ended"),
        starts_at=iso_time(silence.starts_at),
        ends_at=iso_time(silence.ends_at),
        reason=silence.reason,
        created_at=iso_time(silence.created_at),
        created_by=silence.created_by,
        removed_at=None if silence.removed_at is None else iso_time(silence.removed_at),
        removed_by=silence.removed_by,
    )
