"""``dspark-calib demo``: the main job on the telemetry that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("dspark-calib-demo"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of tables.")
    ] = False,
) -> None:
    """Fit and report on the shipped telemetry; needs neither torch nor a GPU."""
    with exit_codes():
        from api.commands.fit import run_fit
        from calib.shipped import shipped_telemetry
        from monitoring.reports.fit_report import FitOptions

        telemetry = shipped_telemetry()
        if not as_json:
            typer.echo(
                "Telemetry of a DSpark drafter for SmolLM2-135M, recorded while it decoded math, "
                "code and chat prompts.\n"
            )
        run_fit([str(telemetry)], None, FitOptions(with_references=True), out, as_json=as_json)
