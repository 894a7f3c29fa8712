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
from api.parameters import Before, DrafterName, Limit
from api.schemas import EventPage, EventView
from api.views import event_view, json_answer
from monitoring.store import audit, events
from monitoring.store.drafter_rows import state_of

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["fleet"], route_class=JsonRoute)

State = Annotated[
    Literal["open", "acknowledged", "resolved"] | None,
    Query(description="only in this state"),
]
EventId = Annotated[int, Path(ge=0, le=2**31 - 1, description="id of the event")]


@router.get(
    "/events",
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
    state: State = None,
    before: Before = None,
    limit: Limit = 50,
) -> Response:
    """Alarms and notices, a page at a time."""
    return json_answer(
        await read(request, lambda connection: _page(connection, drafter, state, before, limit))
    )


@router.get(
    "/drafters/{drafter}/events",
    name="list_drafter_events",
    responses=outcomes({200: describe(EventPage, "Newest first.")}, "drafter-not-found"),
)
async def list_drafter_events(
    request: Request,
    drafter: DrafterName,
    _: Annotated[Principal, Depends(require("read:reports"))],
    state: State = None,
    before: Before = None,
    limit: Limit = 50,
) -> Response:
    """Alarms and notices about one drafter, a page at a time."""

    def work(connection: Connection) -> EventPage:
        state_of(connection, drafter)
        return _page(connection, drafter, state, before, limit)

    return json_answer(await read(request, work))


@router.post(
    "/events/{event}/acknowledge",
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
    event: EventId,
    principal: Annotated[Principal, Depends(require("operate"))],
) -> Response:
    """Say that somebody looks after it."""

    def work(connection: Connection) -> EventView:
        before = events.get_event(connection, event)
        seen = events.acknowledge(connection, event, principal.name)
        if before.state == "open":
            _audit(connection, request, principal, "acknowledge", seen)
        return event_view(seen)

    return json_answer(await change(request, work))


@router.post(
    "/events/{event}/resolve",
    name="resolve_event",
    responses=outcomes(
        {200: describe(EventView, "Resolved; one that was resolved before stays as it is.")},
        "event-not-found",
        "store-full",
    ),
)
async def resolve_event(
    request: Request,
    event: EventId,
    principal: Annotated[Principal, Depends(require("operate"))],
) -> Response:
    """Say that the cause is gone. If it is not, the next report of it opens a new event."""

    def work(connection: Connection) -> EventView:
        before = events.get_event(connection, event)
        done = events.resolve_event(connection, event)
        if before.state != "resolved":
            _audit(connection, request, principal, "resolve", done)
        return event_view(done)

    return json_answer(await change(request, work))


def _page(
    connection: Connection,
    drafter: str | None,
    state: events.EventState | None,
    before: int | None,
    limit: int,
) -> EventPage:
    found = events.list_events(connection, drafter=drafter, state=state, before=before, limit=limit)
    return EventPage(
        events=[event_view(event) for event in found],
        next_before=found[-1].id if len(found) == limit else None,
    )


def _audit(
    connection: Connection,
    request: Request,
    principal: Principal,
    action: str,
    event: events.Event,
) -> None:
    audit.record(
        connection,
        principal.name,
        action,
        event.drafter,
        {"event": event.id},
        request.state.request_id,
    )
