"""``dspark-calib report``: judge an existing calibration, or raw confidence, on telemetry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes

__all__ = ["report", "run_report"]


def report(
    telemetry: Annotated[
        list[str],
        typer.Argument(help="Parquet or Arrow telemetry, or SGLang's .pt shards.", metavar="FILE…"),
    ],
    calibration: Annotated[
        Path | None,
        typer.Option(help="calibration.json or SGLang's STS file; raw confidence when left out."),
    ] = None,
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Block size; needed for .pt shards, checked against the others."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path(
        "dspark-calib-report"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of tables.")
    ] = False,
) -> None:
    """Judge a calibration on telemetry that it was not fitted on."""
    with exit_codes():
        run_report(telemetry, calibration, gamma, out, as_json=as_json)


def run_report(
    telemetry: list[str],
    calibration: Path | None,
    gamma: int | None,
    out: Path,
    *,
    as_json: bool = False,
) -> None:
    """Read, judge, write and print.

    Args:
        telemetry: paths or patterns.
        calibration: a calibration file, or None for identity.
        gamma: block size, or None where the files state it.
        out: folder for the results.
        as_json: print JSON alone.

    Raises:
        CalibrationError: bad input or a refusal, typed.
        OSError: a file that cannot be read or written.
    """
    # Here, not above: --help must not wait for NumPy, SciPy and pandas.
    from rich.console import Console

    from api.calibration_input import read_calibration
    from api.output import console, print_json, print_view, write_report
    from api.telemetry_input import read_telemetry
    from calib.calibration import Calibration
    from calib.canonical_json import plain_json
    from monitoring.reports.evaluation_report import evaluation_report

    with Console(stderr=True).status("reading telemetry") as progress:
        given = read_telemetry(telemetry, gamma)
        size = given.records.gamma
        judged = (
            Calibration.identity(size)
            if calibration is None
            else read_calibration(calibration, size)
        )
        progress.update(f"judging {len(given.records):,} blocks")
        found = evaluation_report(given.records, judged)
        document = plain_json(
            {
                "format": "dspark-calib/evaluation-report/1",
                "source": given.source,
                "notes": list(given.notes),
                "calibration": judged.to_dict(),
                "evaluation": found.to_dict(),
            }
        )
        progress.update("writing results")
        files = write_report(document, found, out)
    if as_json:
        print_json(document, files)
        return
    from monitoring.reports.terminal import evaluation_view

    screen = console()
    for note in given.notes:
        screen.print(f"Note: {note}.", highlight=False)
    print_view(evaluation_view(found, judged, width=screen.width), screen, files)
