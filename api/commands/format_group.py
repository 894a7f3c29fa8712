"""A group of commands, one a file format, each in a module of its own."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import typer

__all__ = ["format_group"]


def format_group(action: str, formats: Sequence[str], summary: str) -> typer.Typer:
    """The commands of a group, in the order of ``formats``.

    Args:
        action: ``import`` or ``export``; a format's command is the function ``<action>_<format>``
            of the module of that name beside this one.
        formats: names as in modules; commands say hyphens for underscores.
        summary: what ``--help`` says of the group.
    """
    group = typer.Typer(help=summary, no_args_is_help=True)
    for name in formats:
        command = f"{action}_{name}"
        function = getattr(import_module(f"api.commands.{command}"), command)
        group.command(name.replace("_", "-"))(function)
    return group
