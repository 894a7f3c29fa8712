"""``dspark-calib diagnose``: where along the block drafts fail, and what static thresholds do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from api.boundary import exit_codes

__all__ = ["diagnose", "diagnosis_lines"]

_FORMAT = "dspark-calib/diagnosis/1"


def diagnose(
    telemetry: Annotated[
        list[str],
        typer.Argument(
            help="Parquet, Arrow or JSON-lines telemetry, or SGLang's .pt shards.", metavar="FILE…"
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for diagnosis.json and the figures.")
    ] = Path("dspark-calib-diagnosis"),
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Block size; needed for .pt shards, checked against the others."),
    ] = None,
    thresholds: Annotated[
        str | None,
        typer.Option(help="Thresholds to try, with commas between; 0, .05, … .95 when left out."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the document as JSON instead of words.")
    ] = False,
) -> None:
    """Diagnose acceptance by position and domain, and sweep a static confidence threshold."""
    with exit_codes():
        # Here, not above: --help must not wait for NumPy and matplotlib.
        from rich.console import Console

        from api.commands.number_list import number_list
        from api.telemetry_input import read_telemetry
        from calib.atomic_files import write_bytes_atomically
        from calib.block_diagnosis import THRESHOLDS, diagnose_blocks
        from monitoring.reports.diagnosis_figures import diagnosis_figures
        from monitoring.reports.figures import save_figure

        chosen = THRESHOLDS
        if thresholds is not None:
            chosen = number_list(float, "--thresholds", thresholds, "0,0.5,0.9")
        with Console(stderr=True).status("reading telemetry") as progress:
            given = read_telemetry(telemetry, gamma)
            progress.update(f"diagnosing {len(given.records):,} blocks")
            found = diagnose_blocks(given.records, thresholds=chosen)
            document = {"format": _FORMAT, "source": given.source, **found.to_dict()}
            progress.update("drawing figures")
            out.mkdir(parents=True, exist_ok=True)
            files = {"numbers": out / "diagnosis.json"}
            encoded = json.dumps(document, allow_nan=False, ensure_ascii=False)
            write_bytes_atomically(files["numbers"], encoded.encode() + b"\n")
            for name, figure in diagnosis_figures(found).items():
                files[name] = out / f"{name}.png"
                save_figure(figure, files[name])
        if as_json:
            paths = {name: str(path) for name, path in files.items()}
            typer.echo(json.dumps(document | {"files": paths}, allow_nan=False))
            return
        for line in [*diagnosis_lines(document), *(f"{n}  {p}" for n, p in files.items())]:
            typer.echo(line)


def diagnosis_lines(document: dict[str, Any]) -> list[str]:
    """The document in words.

    Args:
        document: as it is written.
    """
    lines = []
    for group in document["groups"]:
        positions = group["positions"]
        first, worst = positions[0], _worst(positions)
        lines.append(
            f"{group['name']}: {group['rows']:,} blocks, {group['verified']:.2f} tokens verified, "
            f"accepted length {group['accepted_length']:.2f}; position 1 accepted "
            f"{_share(first['acceptance'])}, position {worst['position']} least "
            f"({_share(worst['acceptance'])} of {worst['observed']:,} that reached it)."
        )
        lines += _sweep_lines(group)
    excluded = sum(document["excluded"].values())
    if excluded:
        lines.append(f"{excluded:,} rows were left out.")
    if document["fully_verified"] < 1.0:
        lines.append(
            f"{1.0 - document['fully_verified']:.1%} of the blocks were trimmed: accepted lengths "
            "are those of what was verified."
        )
    return lines


def _worst(positions: list[dict[str, Any]]) -> dict[str, Any]:
    known = [each for each in positions if each["acceptance"] is not None]
    return min(known, key=lambda each: each["acceptance"], default=positions[0])


def _sweep_lines(group: dict[str, Any]) -> list[str]:
    points = group["sweep"]
    if not points:
        return [f"  no threshold sweep: {group['sweep_reason']}"]
    middle = min(points, key=lambda point: abs(point["threshold"] - 0.5))
    return [
        f"  threshold {point['threshold']:g}: {point['verified']:.2f} verified, "
        f"{_share(point['acceptance_rate'])} of them accepted, accepted length "
        f"{point['accepted_length']:.2f}, {point['wasted']:.2f} wasted"
        for point in ((points[0],) if points[0] is middle else (points[0], middle))
    ]


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.1%}"
