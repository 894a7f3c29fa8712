"""The command line. Every command lives in its own file and imports what it needs when it runs."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Annotated

import typer

__all__ = ["COMMANDS", "GROUPS", "app", "main"]

# In the order of --help. A command is the function of its name in the module of its name.
COMMANDS = (
    "demo",
    "fit",
    "report",
    "regret",
    "diagnose",
    "replay",
    "serve",
    "drift",
    "events",
    "recalibrate",
    "promote",
    "rollback",
    "doctor",
    "reproduce",
    "train",
    "record",
)
# Commands of commands: the Typer application of its name in the module of its name.
GROUPS = ("export", "import", "token", "alerts", "silence")
_MODULES = {"import": "imports"}  # a keyword of the language names no module

app = typer.Typer(
    name="dspark-calib",
    help="Calibrated confidence for speculative decoding with DSpark drafters.",
    no_args_is_help=True,
    add_completion=False,
    # A fault of ours is shown as Python shows it: without the values of local variables, which
    # may be a user's telemetry.
    pretty_exceptions_enable=False,
)

# Commands print what was refused; without a handler Python would print the log line as well.
logging.getLogger("calib").addHandler(logging.NullHandler())


def main() -> None:
    """Run the command line; exit code 0 done, 1 refused by the data, 2 bad input."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"dspark-calib {version('dspark-calib')}")
        except PackageNotFoundError:
            typer.echo("dspark-calib (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Calibrated confidence for speculative decoding with DSpark drafters."""


def _register() -> None:
    for name in COMMANDS:
        # Training and recording may be left out of an installation.
        if find_spec(f"api.commands.{name}") is not None:
            app.command(name)(getattr(import_module(f"api.commands.{name}"), name))
    for name in GROUPS:
        module = _MODULES.get(name, name)
        app.add_typer(getattr(import_module(f"api.commands.{module}"), module), name=name)


_register()
