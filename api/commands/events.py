"""``dspark-calib events``: what happened in a running service, and who looks after it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)
from calib.errors import ConfigurationError

__all__ = ["EventState", "event_line", "events"]


class EventState(StrEnum):
    """States to show."""

    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


def events(
    drafter: Annotated[
        str | None, typer.Argument(help="Only about this drafter; everything when left out.")
    ] = None,
    state: Annotated[EventState | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Newest events to show.")] = 20,
    acknowledge: Annotated[
        int | None, typer.Option(min=0, help="Say that you look after this event.")
    ] = None,
    resolve: Annotated[
        int | None, typer.Option(min=0, help="Say that the cause of this event is gone.")
    ] = None,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """List alarms and notices, newest first, or change the state of one."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        if acknowledge is not None and resolve is not None:
            raise ConfigurationError("resolve", resolve, "give --acknowledge or --resolve")
        changed = acknowledge if acknowledge is not None else resolve
        if changed is not None:
            action = "acknowledge" if acknowledge is not None else "resolve"
            event = service.call("POST", f"/v1/events/{changed}/{action}").json()
            typer.echo(json.dumps(event) if as_json else event_line(event))
            return
        path = "/v1/events" if drafter is None else f"/v1/drafters/{drafter}/events"
        parameters = {"limit": str(limit)}
        if state is not None:
            parameters["state"] = state.value
        page = service.call("GET", path, parameters=parameters).json()
        if as_json:
            typer.echo(json.dumps(page))
            return
        for event in page["events"]:
            typer.echo(event_line(event))
        if not page["events"]:
            typer.echo("Nothing happened.")


def event_line(event: dict[str, Any]) -> str:
    """One event in one line."""
    seen = f" by {event['acknowledged_by']}" if event["acknowledged_by"] else ""
    times = f" ({event['count']} times)" if event["count"] > 1 else ""
    return (
        f"{event['id']:>6}  {event['opened_at']}  {event['severity']:<8}  "
        f"{event['state']}{seen}  {event['title']}{times}"
    )
