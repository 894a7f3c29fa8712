"""What happened, newest first, and who has seen it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Query
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from api.auth import Principal, require
from api.database_calls import change, read
from api.documentation import describe, outcomes
from api.json_route import JsonRoute
from api.parameters import Before, Limit
from api.schemas import EventPage, EventView
from api.views import event_view, json_answer
from monitoring.store import audit, events

__all__ = ["router"]

router = APIRouter(prefix="/v1/events", tags=["fleet"], route_class=JsonRoute)


@router.get(
    "",
    name="list_events",
    responses=outcomes({200: describe(EventPage, "Newest first.")}),
)
async def list_events(
    request: Request,
    _: Annotated[Principal, Depends(require("read:reports"))],
    drafter: Annotated[
        str | None,
        Query(
            pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=128, description="only about this drafter"
        ),
    ] = None,
    state: Annotated[
        Literal["open", "acknowledged", "resolved"] | None,
        Query(description="only in this state"),
    ] = None,
    before: Before = None,
    limit: Limit = 50,
) -> Response:
    """Alarms and notices, a page at a time."""

    def work(connection: Connection) -> EventPage:
        found = events.list_events(
            connection, drafter=drafter, state=state, before=before, limit=limit
        )
        return EventPage(
            events=[event_view(event) for event in found],
            next_before=found[-1].id if len(found) == limit else None,
        )

    return json_answer(await read(request, work))


@router.post(
    "/{event}/acknowledge",
    name="acknowledge_event",
    responses=outcomes(
        {200: describe(EventView, "Seen; whoever saw it first stays.")},
        "event-not-found",
        "conflict",
        "store-full",
    ),
)
async def acknowledge_event(
    request: Request,
    event: Annotated[int, Path(ge=0, le=2**31 - 1, description="id of the event")],
    principal: Annotated[Principal, Depends(require("operate"))],
) -> Response:
    """Say that somebody looks after it."""

    def work(connection: Connection) -> EventView:
        before = events.get_event(connection, event)
        seen = events.acknowledge(connection, event, principal.name)
        if before.state == "open":
            audit.record(
                connection,
                principal.name,
                "acknowledge",
                seen.drafter,
                {"event": event},
                request.state.request_id,
            )
        return event_view(seen)

    return json_answer(await change(request, work))
