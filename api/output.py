"""What a command leaves behind: files in one folder, and words on the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from calib.atomic_files import write_bytes_atomically
from calib.formats.sglang_sts import sts_bytes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from monitoring.reports.evaluation_report import EvaluationReport
    from monitoring.reports.fit_report import FitReport

__all__ = ["Files", "print_json", "print_view", "write_calibration", "write_report"]

CALIBRATION = "calibration.json"
STS = "sglang_sts.json"
REPORT = "report.json"
PAGE = "report.html"
RELIABILITY = "reliability.png"

Files = dict[str, Path]  # what a file is, in words, and where it lies


def write_calibration(report: FitReport, folder: Path) -> Files:
    """Write the calibration and the file that SGLang loads.

    Errors in the SGLang file are those of the judged rows by its temperatures. A list with a null
    would make SGLang refuse the file and is left out.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    calibration, overall = report.calibration, report.evaluation.overall
    by_temperatures = overall.raw if report.evaluation.form == "affine" else overall.calibrated
    sts = sts_bytes(
        calibration.temperatures,
        dataset=report.source,
        num_samples=report.split.fit_rows,
        ece_before=[metrics.ece for metrics in overall.raw.report.survival],
        ece_after=[metrics.ece for metrics in by_temperatures.report.survival],
        extra={
            "gamma": calibration.gamma,
            "method": calibration.method,
            "status": str(calibration.status),
            "calibration_digest": calibration.digest,
            "ece_rows": report.evaluation.rows,
            "ece_split": report.split.kind,
        },
    )
    write_bytes_atomically(folder / CALIBRATION, calibration.to_json() + b"\n")
    write_bytes_atomically(folder / STS, sts + b"\n")
    return {"calibration": folder / CALIBRATION, "SGLang's STS file": folder / STS}


def write_report(
    document: dict[str, Any],
    report: EvaluationReport,
    folder: Path,
    *,
    page: Path | None = None,
    picture: Path | None = None,
) -> Files:
    """Write the report as JSON, as a page to read or print, and its figures.

    Args:
        document: plain JSON values.
        report: what the figures show.
        folder: made if it does not exist.
        page: where the page goes; into the folder when None.
        picture: where the reliability figure goes; into the folder when None.

    Raises:
        OSError: a folder cannot be made or a file not written.
    """
    # matplotlib takes a second to import.
    from monitoring.reports.figures import domain_error_figure, reliability_figure, save_figure
    from monitoring.reports.html_report import html_report

    files = {
        "report": folder / REPORT,
        "report to read": page or folder / PAGE,
        "reliability figure": picture or folder / RELIABILITY,
    }
    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    encoded = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    write_bytes_atomically(files["report"], encoded.encode() + b"\n")
    write_bytes_atomically(files["report to read"], html_report(document))
    title = f"Survival of {report.rows:,} blocks, raw and calibrated"
    save_figure(reliability_figure(report.overall, title=title), files["reliability figure"])
    for segment in report.segments_by("domain"):
        if segment.comparison is not None:
            name = segment.tags["domain"]
            path = folder / f"ece_{_slug(name)}.png"
            save_figure(domain_error_figure(segment.comparison, name), path)
            files[f"calibration error, {name}"] = path
    return files


def print_json(document: dict[str, Any], files: Files) -> None:
    """The report on standard output, as one JSON object, with where its files lie."""
    shown = {**document, "files": {name: str(path) for name, path in files.items()}}
    typer.echo(json.dumps(shown, allow_nan=False, ensure_ascii=False))


def print_view(view: RenderableType, console: Console, files: Files) -> None:
    """Tables and sentences, then one line per file."""
    console.print(view)
    width = max((len(name) for name in files), default=0)
    for name, path in files.items():
        # A path that wraps cannot be copied.
        console.print(Text(f"{name:<{width}}  {path}"), soft_wrap=True)


def console() -> Console:
    """Standard output, as wide as the terminal, or as the widest table where there is none."""
    from monitoring.reports.terminal import WIDTH

    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def _slug(name: str) -> str:
    """A tag as part of a file name: domains come from outside and may hold anything."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "unnamed"
