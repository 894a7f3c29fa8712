"""``dspark-calib alerts``: fire a test at the configured receivers, and see who they are."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import REFUSED, exit_codes
from calib.errors import ConfigurationError

if TYPE_CHECKING:
    from api.alert_settings import AlertReceiverSettings
    from api.settings import Settings

__all__ = ["alerts"]

alerts = typer.Typer(help="Receivers of alerts: list them, test them.", no_args_is_help=True)
_NO_RECEIVER = (
    "none is configured: add [[alert_receivers]] to the settings, and name their file by --config"
)

Config = Annotated[Path | None, typer.Option(help="TOML file with settings of the service.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script to read.")]


@alerts.command(name="list")
def list_(config: Config = None, as_json: AsJson = False) -> None:
    """Who is told, from which severity on; addresses and secrets are not shown."""
    with exit_codes():
        from api.settings import load_settings

        found = load_settings(config=config).alert_receivers
        if as_json:
            shown = ("name", "kind", "minimum_severity")
            typer.echo(json.dumps([{key: getattr(one, key) for key in shown} for one in found]))
            return
        if not found:
            typer.echo("No receiver is configured: add [[alert_receivers]] to the settings.")
        for one in found:
            typer.echo(f"{one.name}  {one.kind}  from {one.minimum_severity}")


@alerts.command(name="test")
def fire(
    receiver: Annotated[
        str | None, typer.Option(help="Only the receiver of this name; all by default.")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Send a marked test message from this machine; exit code 1 when a receiver did not take it.

    An Alertmanager gets an alert of kind test that ends by itself after a minute.
    """
    with exit_codes():
        from api.settings import load_settings

        settings = load_settings(config=config)
        chosen = [one for one in settings.alert_receivers if receiver in (None, one.name)]
        if not chosen:
            names = ", ".join(one.name for one in settings.alert_receivers)
            remedy = f"there are: {names}" if names else _NO_RECEIVER
            raise ConfigurationError("receiver", receiver, remedy)
        outcomes = [asyncio.run(_fire(one, settings)) for one in chosen]
        if as_json:
            typer.echo(json.dumps(outcomes))
        else:
            for outcome in outcomes:
                typer.echo(_sentence(outcome))
        refused = any(outcome["error"] for outcome in outcomes)
    if refused:
        raise typer.Exit(REFUSED)


async def _fire(one: AlertReceiverSettings, settings: Settings) -> dict[str, Any]:
    """What became of one message."""
    from monitoring.alerts.delivery import DeliverySettings, request_for
    from monitoring.alerts.messages import test_message
    from monitoring.alerts.transport import open_client, post

    receiver, now = one.receiver(), time.time()
    # Short, so that an Alertmanager forgets it soon.
    delivering = DeliverySettings(base_url=settings.service_url, repeat_seconds=12.0)
    message = test_message(base_url=settings.service_url, now=now)
    request = request_for(receiver, message, str(uuid.uuid4()), now, delivering)
    started = time.monotonic()
    async with open_client(receiver) as client:
        answer = await post(client, request, seconds=receiver.timeout_seconds, now=now)
    seconds = round(time.monotonic() - started, 3)
    return {"receiver": one.name, "kind": one.kind, "seconds": seconds, "error": answer.error}


def _sentence(outcome: dict[str, Any]) -> str:
    name, kind, error = outcome["receiver"], outcome["kind"], outcome["error"]
    if error is None:
        return f"{name} ({kind}) took it after {outcome['seconds']:.2f} s"
    return f"{name} ({kind}) did not take it: {error}"
