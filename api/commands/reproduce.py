"""``dspark-calib reproduce``: make a recalibration again from its revision or its MLflow run."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from api.boundary import REFUSED, exit_codes
from api.commands.serve import database_address
from calib.errors import ConfigurationError

if TYPE_CHECKING:
    from api.settings import Settings
    from monitoring.reproduction import Reproduction

__all__ = ["reproduce"]

_RUN: Final = re.compile(r"[0-9a-f]{32}")
_WORDS: Final = {
    "equal": "equal",
    "differs": "differs",
    "window_gone": "window no longer kept",
    "no_fit": "not a fit",
}


def reproduce(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN_ID", help="Id of the run in MLflow.")
    ] = None,
    revision: Annotated[
        str | None,
        typer.Option(metavar="DRAFTER:N", help="The revision instead, without asking MLflow."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the settings of the service.")
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(help="Database of the service; its telemetry is read there.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the service's SQLite database; instead of a URL.")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="Where RUN_ID is; the setting of the service if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fit the frozen window of a recalibration again and compare digest and numbers.

    Exit code 0: equal. 1: it differs, or there is nothing to repeat. Stores nothing.
    """
    with exit_codes():
        from api.settings import load_settings
        from monitoring.reproduction import reproduce as make_again

        settings = load_settings(
            config=config,
            database_url=database_address(database_url, data),
            tracking_uri=tracking_uri,
        )
        drafter, number, digest = _wanted(settings, run, revision)
        with _opened(settings) as database, _spinning(f"fitting revision {number} of {drafter}"):
            found = make_again(database, drafter, number)
        if digest not in (None, found.digest):
            raise ConfigurationError(
                "database_url",
                settings.database_name,
                f"the run is about numbers {str(digest)[:12]}…, revision {number} here holds "
                f"{found.digest[:12]}…: name the database that the run was mirrored from",
            )
        typer.echo(json.dumps(asdict(found)) if as_json else _told(found))
    if found.outcome != "equal":
        raise typer.Exit(REFUSED)


def _wanted(
    settings: Settings, run: str | None, revision: str | None
) -> tuple[str, int, str | None]:
    """Drafter, number and, from a run, the digest that the revision must have."""
    if (run is None) == (revision is None):
        raise ConfigurationError("RUN_ID", run, "give the id of a run, or --revision DRAFTER:N")
    if revision is not None:
        drafter, _, number = revision.rpartition(":")
        if not drafter or not number.isdigit():
            raise ConfigurationError("revision", revision, "give DRAFTER:N, such as my-drafter:3")
        return drafter, int(number), None
    if run is None or not _RUN.fullmatch(run):
        raise ConfigurationError("RUN_ID", run, "give the 32 digits that MLflow shows as Run ID")
    tags = _tags(settings, run)
    if not tags.get("revision", "").isdigit():
        reason = tags.get("status", "unknown")
        raise ConfigurationError(
            "RUN_ID", run, f"the run made no revision (status {reason}): there is no fit to repeat"
        )
    return tags["drafter"], int(tags["revision"]), tags.get("digest")


def _tags(settings: Settings, run: str) -> dict[str, str]:
    from monitoring.mlflow_mirror.tracking_place import bound_calls, is_installed

    place = settings.tracking_place()
    if not is_installed() or place is None:
        remedy = "install dspark-calib[mlflow] and name a tracking_uri, or give --revision"
        raise ConfigurationError("tracking_uri", settings.tracking_uri, remedy)
    if not place.is_made:
        remedy = "nothing was mirrored there yet; name the service's --data or --tracking-uri"
        raise ConfigurationError("tracking_uri", place.shown, remedy)
    bound_calls(settings.tracking_timeout_seconds)
    with _spinning("asking MLflow"):
        from monitoring.mlflow_mirror.tracking_server import tags_of_run

        return tags_of_run(place, run)


def _opened(settings: Settings) -> Any:
    """The service's database, closed at the end of the block; it must be there already."""
    from contextlib import closing

    from monitoring.store.database import Database
    from monitoring.store.migrate import is_current

    database = Database.open(settings.database_url)
    database.check()
    if not is_current(database):
        database.close()
        raise ConfigurationError(
            "database_url", settings.database_name, "no tables of this release: start the service"
        )
    return closing(database)


def _spinning(words: str) -> Any:
    from rich.console import Console

    return Console(stderr=True).status(words)


def _told(found: Reproduction) -> str:
    lines = [
        f"Revision {found.revision} of {found.drafter}: {_WORDS[found.outcome]}.",
        f"{found.reason[0].upper()}{found.reason[1:]}.",
    ]
    if found.window_digest is not None:
        lines.append(f"rows     {found.window_digest}  now  {found.window_digest_again or 'none'}")
    if found.digest_again is not None:
        lines.append(f"numbers  {found.digest}  now  {found.digest_again}")
    for name, both in found.numbers.items():
        lines += [
            f"{name} stored  {_list(both['stored'])}",
            f"{name} again   {_list(both['again'])}",
        ]
    return "\n".join(lines)


def _list(values: Any) -> str:
    return "none" if values is None else ", ".join(f"{value:g}" for value in values)
