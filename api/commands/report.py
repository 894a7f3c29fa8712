"""``dspark-calib report``: judge an existing calibration, or raw confidence, on telemetry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes

__all__ = ["Targets", "report", "run_report"]


def report(
    telemetry: Annotated[
        list[str],
        typer.Argument(
            help="Parquet, Arrow or JSON-lines telemetry, or SGLang's .pt shards.", metavar="FILE…"
        ),
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
    cost_table: Annotated[
        Path | None,
        typer.Option(help="Step curve of the engine: also say what the error costs in tokens/s."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--html", help="The report as one page to read or print; else in --out."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--png", help="The reliability figure (.png, .pdf, .svg); else in --out."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of tables.")
    ] = False,
) -> None:
    """Judge a calibration on telemetry that it was not fitted on."""
    with exit_codes():
        targets = Targets(out, page, picture)
        run_report(telemetry, calibration, gamma, targets, cost_table=cost_table, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Targets:
    """Where results go.

    Attributes:
        folder: for everything without a place of its own.
        page: of the page; None puts it into the folder.
        picture: of the reliability figure; likewise.
    """

    folder: Path
    page: Path | None = None
    picture: Path | None = None


def run_report(
    telemetry: list[str],
    calibration: Path | None,
    gamma: int | None,
    targets: Targets,
    *,
    cost_table: Path | None = None,
    as_json: bool = False,
) -> None:
    """Read, judge, write and print.

    Args:
        telemetry: paths or patterns.
        calibration: a calibration file, or None for identity.
        gamma: block size, or None where the files state it.
        targets: where the results go.
        cost_table: step curve of the engine, or None.
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
    from calib.cost_table_files import load_cost_table
    from monitoring.reports.documents import evaluation_document
    from monitoring.reports.evaluation_report import evaluation_report
    from monitoring.reports.throughput import throughput

    with Console(stderr=True).status("reading telemetry") as progress:
        given = read_telemetry(telemetry, gamma)
        cost = None if cost_table is None else load_cost_table(cost_table)
        size = given.records.gamma
        judged = (
            Calibration.identity(size)
            if calibration is None
            else read_calibration(calibration, size)
        )
        progress.update(f"judging {len(given.records):,} blocks")
        found = evaluation_report(given.records, judged)
        document = evaluation_document(
            found,
            judged,
            source=given.source,
            notes=given.notes,
            worth=None if cost is None else throughput(given.records, judged, cost),
        )
        progress.update("writing results")
        files = write_report(
            document, found, targets.folder, page=targets.page, picture=targets.picture
        )
    if as_json:
        print_json(document, files)
        return
    from monitoring.reports.terminal import evaluation_view

    screen = console()
    for note in given.notes:
        screen.print(f"Note: {note}.", highlight=False)
    print_view(evaluation_view(found, judged, width=screen.width), screen, files)
