"""``dspark-calib fit``: temperatures from telemetry, judged on prompts they have not seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.boundary import REFUSED, exit_codes

if TYPE_CHECKING:
    from calib.prompt_split import SplitColumn
    from monitoring.reports.fit_report import FitOptions

__all__ = ["fit", "run_fit"]


class Method(StrEnum):
    """How numbers are found."""

    AUTO = "auto"
    STS = "sts"
    TEMPERATURE = "temperature"
    AFFINE = "affine"
    SURVIVAL = "survival"


class Mode(StrEnum):
    """Which numbers STS gives."""

    DEFAULT = "default"
    PARITY = "parity"


class SplitBy(StrEnum):
    """What keeps fit and evaluation apart."""

    PROMPT = "prompt"
    REQUEST = "request"
    NONE = "none"


def fit(
    telemetry: Annotated[
        list[str],
        typer.Argument(
            help="Parquet, Arrow or JSON-lines telemetry, or SGLang's .pt shards.", metavar="FILE…"
        ),
    ],
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Block size; needed for .pt shards, checked against the others."),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="auto chooses by held-out log loss and says why; sts needs everything verified."
        ),
    ] = Method.AUTO,
    mode: Annotated[
        Mode, typer.Option(help="Of sts: our search, or the numbers of SGLang's fitter.")
    ] = Mode.DEFAULT,
    evaluate_share: Annotated[
        float, typer.Option(help="Share of prompts kept for evaluation, between 0 and 1.")
    ] = 0.5,
    evaluate_on: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Judge on these files instead of splitting by prompt."),
    ] = None,
    split_by: Annotated[
        SplitBy,
        typer.Option(help="Column to split by; none judges the fit on its own rows and says so."),
    ] = SplitBy.PROMPT,
    salt: Annotated[str | None, typer.Option(help="Draws another split of the prompts.")] = None,
    minimum_rows: Annotated[
        int | None,
        typer.Option(min=0, help="Rows a position needs before its number is published."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("dspark-calib-fit"),
    references: Annotated[
        bool, typer.Option(help="Also show what isotonic and Platt calibrators reach.")
    ] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of tables.")
    ] = False,
) -> None:
    """Fit temperatures on one part of the prompts and judge them on the other."""
    with exit_codes():
        from calib.fit_status import MINIMUM_ROWS
        from calib.prompt_split import DEFAULT_SALT
        from monitoring.reports.fit_report import FitOptions

        options = FitOptions(
            method=method.value,
            mode=mode.value,
            evaluation_share=evaluate_share,
            split_column=_split_column(split_by),
            salt=DEFAULT_SALT if salt is None else salt,
            minimum_rows=MINIMUM_ROWS if minimum_rows is None else minimum_rows,
            with_references=references,
        )
        run_fit(telemetry, gamma, options, out, evaluate_on=evaluate_on, as_json=as_json)


def _split_column(split_by: SplitBy) -> SplitColumn | None:
    if split_by is SplitBy.NONE:
        return None
    return "prompt" if split_by is SplitBy.PROMPT else "request"


@contextmanager
def _options_named() -> Iterator[None]:
    """Add to an error about the split which options of this command mend it."""
    from calib.errors import RecordError

    try:
        yield
    except RecordError as error:
        if error.field not in ("prompt", "request") or error.value is not None:
            raise
        options = "here --split-by request, --evaluate-on FILE or --split-by none"
        raise RecordError(error.field, None, f"{error.remedy}; {options}") from error


def run_fit(
    telemetry: list[str],
    gamma: int | None,
    options: FitOptions,
    out: Path,
    *,
    evaluate_on: list[str] | None = None,
    as_json: bool = False,
) -> None:
    """Read, fit, judge, write and print; ends the command with code 1 when nothing is published.

    Args:
        telemetry: paths or patterns.
        gamma: block size, or None where the files state it.
        options: how to fit and judge.
        out: folder for the results.
        evaluate_on: paths or patterns of other telemetry to judge on.
        as_json: print JSON alone.

    Raises:
        CalibrationError: bad input or a refusal, typed.
        OSError: a file that cannot be read or written.
        typer.Exit: nothing may be published.
    """
    # Here, not above: --help must not wait for NumPy, SciPy and pandas.
    from rich.console import Console

    from api.output import (
        CALIBRATION,
        console,
        print_json,
        print_view,
        write_calibration,
        write_report,
    )
    from api.telemetry_input import read_telemetry
    from monitoring.reports.documents import fit_document
    from monitoring.reports.fit_report import fit_report

    with Console(stderr=True).status("reading telemetry") as progress:
        given = read_telemetry(telemetry, gamma)
        others = read_telemetry(evaluate_on, given.records.gamma) if evaluate_on else None
        progress.update(f"fitting and judging {len(given.records):,} blocks")
        with _options_named():
            report = fit_report(
                given.records,
                options,
                evaluate_on=None if others is None else others.records,
                source=given.source,
                fitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        progress.update("writing results")
        document = fit_document(report, notes=given.notes)
        files = {} if report.refusal else write_calibration(report, out)
        files |= write_report(document, report.evaluation, out)
    if as_json:
        print_json(document, files)
    else:
        from monitoring.reports.terminal import fit_view

        screen = console()
        for note in given.notes:
            screen.print(f"Note: {note}.", highlight=False)
        print_view(fit_view(report, width=screen.width), screen, files)
    if report.refusal:
        typer.echo(f"refused: {report.refusal}", err=True)
        if (out / CALIBRATION).exists():
            typer.echo(f"{out / CALIBRATION} is from an earlier run", err=True)
        raise typer.Exit(REFUSED)
