"""``dspark-calib import FORMAT``: what engines and other tools wrote, as telemetry."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

__all__ = ["FORMATS", "imports"]

imports = typer.Typer(help="Files of engines and other tools as telemetry.", no_args_is_help=True)

# A format is the function ``import_<format>`` in the module of that name.
FORMATS = ("sglang", "vllm_metrics", "deepspec")


def _register() -> None:
    for name in FORMATS:
        place = f"api.commands.import_{name}"
        if find_spec(place) is not None:
            command = getattr(import_module(place), f"import_{name}")
            imports.command(name.replace("_", "-"))(command)


_register()
