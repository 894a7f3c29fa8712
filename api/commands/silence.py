"""``dspark-calib silence``: tell nobody for a while, through the running service."""

from __future__ import annotations

import json
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

__all__ = ["silence"]

silence = typer.Typer(help="Silences of alerts: add, list, remove.", no_args_is_help=True)

_HOUR_SECONDS = 3600.0
_PATH = "/v1/silences"

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@silence.command()
def add(
    reason: Annotated[str, typer.Option(help="Why; kept with it and in the audit log.")],
    hours: Annotated[float, typer.Option(min=0.0, max=90 * 24.0, help="How long.")] = 2.0,
    drafter: Annotated[str | None, typer.Option(help="Whose events.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of event, such as drift; an unknown word lists all.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Events of every drafter and kind.")
    ] = False,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: AsJson = False,
) -> None:
    """Tell nobody of matching events from now on; they are recorded as ever."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        if (drafter is None and kind is None) != everything:
            remedy = "give --drafter or --kind, or else --everything"
            raise ConfigurationError("--everything", everything, remedy)
        body = {
            "drafter": drafter,
            "kind": kind,
            "duration_seconds": hours * _HOUR_SECONDS,
            "reason": reason,
        }
        found: dict[str, Any] = service.call("POST", _PATH, body=body).json()
        typer.echo(json.dumps(found) if as_json else _sentence(found))


@silence.command(name="list")
def list_(
    ended: Annotated[bool, typer.Option("--ended", help="Also those that are over.")] = False,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: AsJson = False,
) -> None:
    """Silences that hold, newest first."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        parameters = {"ended": "true" if ended else "false"}
        found = service.call("GET", _PATH, parameters=parameters).json()["silences"]
        if as_json:
            typer.echo(json.dumps(found))
            return
        if not found:
            typer.echo("Nothing is silenced.")
        for one in found:
            typer.echo(_sentence(one))


@silence.command()
def remove(
    number: Annotated[int, typer.Argument(min=0, help="Number of the silence, as listed.")],
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: AsJson = False,
) -> None:
    """End a silence now; what still holds is told."""
    with service_exit_codes(), ServiceCalls(url, token) as service:
        found: dict[str, Any] = service.call("DELETE", f"{_PATH}/{number}").json()
        typer.echo(json.dumps(found) if as_json else _sentence(found))


def _sentence(one: dict[str, Any]) -> str:
    what = " of ".join(
        (
            "every event" if one["kind"] is None else f"{one['kind']} events",
            "every drafter" if one["drafter"] is None else one["drafter"],
        )
    )
    until = f"removed {one['removed_at']}" if one["removed_at"] else f"until {one['ends_at']}"
    return f"{one['id']}  {what}, {until} ({one['created_by']}: {one['reason']})"
