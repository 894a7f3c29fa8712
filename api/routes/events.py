"""What happened, newest first, and who has seen it."""

from __future__ import annotations

from collections.abc import Callable
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

    def acknowledged(connection: Connection) -> events.Event:
        return events.acknowledge(connection, event, principal.name)

    return await _changed(request, principal, event, "acknowledge", acknowledged)


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

    def resolved(connection: Connection) -> events.Event:
        return events.resolve_event(connection, event)

    return await _changed(request, principal, event, "resolve", resolved)


async def _changed(
    request: Request,
    principal: Principal,
    identifier: int,
    action: str,
    work: Callable[[Connection], events.Event],
) -> Response:
    """The event after ``work``; an audit row where its state is another one now."""

    def audited(connection: Connection) -> EventView:
        before = events.get_event(connection, identifier)
        event = work(connection)
        if event.state != before.state:
            details, place = {"event": event.id}, request.state.request_id
            audit.record(connection, principal.name, action, event.drafter, details, place)
        return event_view(event)

    return json_answer(await change(request, audited))


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
