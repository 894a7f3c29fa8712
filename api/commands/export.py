"""``dspark-calib export FORMAT``: a calibration as the file that an engine loads."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import typer

__all__ = ["FORMATS", "export"]

export = typer.Typer(help="Calibrations as files that engines load.", no_args_is_help=True)

# A format is the function ``export_<format>`` in the module of that name.
FORMATS = ("sglang", "deepspec", "tensorrt_llm")


def _register() -> None:
    for name in FORMATS:
        place = f"api.commands.export_{name}"
        if find_spec(place) is not None:
            command = getattr(import_module(place), f"export_{name}")
            export.command(name.replace("_", "-"))(command)


_register()
