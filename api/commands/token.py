"""``dspark-calib token``: make, list and revoke the tokens that the service accepts.

Works on the database, not through the service: the first token has to come from somewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import exit_codes
from api.commands.serve import database_address

if TYPE_CHECKING:
    from monitoring.store.database import Database
    from monitoring.store.tokens import Token

__all__ = ["token"]

token = typer.Typer(help="Make, list and revoke tokens of the service.", no_args_is_help=True)

_DAY_SECONDS = 24 * 3600.0


class Scope(StrEnum):
    """What a token may do."""

    READ_TEMPERATURES = "read:temperatures"
    READ_REPORTS = "read:reports"
    WRITE_TELEMETRY = "write:telemetry"
    OPERATE = "operate"


DatabaseUrl = Annotated[
    str | None,
    typer.Option(help="sqlite:///path or postgresql://…; default is that of the service."),
]
Data = Annotated[
    Path | None, typer.Option(help="Folder of the service's SQLite database; instead of a URL.")
]
Config = Annotated[Path | None, typer.Option(help="TOML file with settings of the service.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a script to read.")]


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="Who or what will use it, such as engine-1.")],
    scope: Annotated[
        list[Scope],
        typer.Option(help="What it may do; may be repeated. operate includes reading."),
    ],
    expires_days: Annotated[
        float | None, typer.Option(min=0, help="Days until it is refused; never by default.")
    ] = None,
    database_url: DatabaseUrl = None,
    data: Data = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print its secret, once: only a hash of it is stored."""
    with exit_codes(), _database(database_url, data, config) as database:
        from monitoring.store.tokens import create_token

        scopes = [one.value for one in scope]
        expires_at = (
            None if expires_days is None else database.clock() + expires_days * _DAY_SECONDS
        )
        made, secret = database.run(
            lambda connection: create_token(connection, name, scopes, expires_at=expires_at)
        )
        if as_json:
            typer.echo(json.dumps({**_plain(made), "secret": secret}))
        else:
            typer.echo(secret)
            typer.echo(
                f"This is the only time that the secret of {name!r} is shown. Send it as "
                "'Authorization: Bearer …'.",
                err=True,
            )


@token.command(name="list")
def list_(
    database_url: DatabaseUrl = None,
    data: Data = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Every token ever made, without secrets."""
    with exit_codes(), _database(database_url, data, config) as database:
        from monitoring.store.tokens import list_tokens

        with database.read() as connection:
            found = list_tokens(connection)
        if as_json:
            typer.echo(json.dumps([_plain(one) for one in found]))
            return
        if not found:
            typer.echo("No token was made yet: the service answers this machine only.")
        for one in found:
            typer.echo(f"{one.id}  {one.name}  {' '.join(sorted(one.scopes))}  {_state(one)}")


@token.command()
def revoke(
    name_or_id: Annotated[str, typer.Argument(help="Name or id, as listed.")],
    database_url: DatabaseUrl = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Refuse a token from now on; running services follow within two seconds."""
    with exit_codes(), _database(database_url, data, config) as database:
        from monitoring.store.tokens import revoke_token

        revoked = database.run(lambda connection: revoke_token(connection, name_or_id))
        typer.echo(f"{revoked.id}  {revoked.name}  {_state(revoked)}")


@contextmanager
def _database(
    database_url: str | None, data: Path | None, config: Path | None
) -> Iterator[Database]:
    """The migrated database of the service."""
    from api.settings import load_settings
    from monitoring.store.database import Database
    from monitoring.store.migrate import upgrade

    address = database_address(database_url, data)
    settings = load_settings(config=config, database_url=address)
    database = Database.open(settings.database_url)
    try:
        upgrade(database)
        yield database
    finally:
        database.close()


def _plain(one: Token) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "scopes": sorted(one.scopes),
        "created_at": _time(one.created_at),
        "expires_at": _time(one.expires_at),
        "revoked_at": _time(one.revoked_at),
    }


def _state(one: Token) -> str:
    if one.revoked_at is not None:
        return f"revoked {_time(one.revoked_at)}"
    if one.expires_at is not None:
        return f"expires {_time(one.expires_at)}"
    return "valid"


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
