"""``dspark-calib import deepspec``: records of DeepSpec's evaluation as telemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes

__all__ = ["import_deepspec"]


def import_deepspec(
    paths: Annotated[
        list[Path],
        typer.Argument(help="confidence_records.jsonl of --confidence-dump-dir.", metavar="PATH…"),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Parquet file to write.")],
    gamma: Annotated[
        int | None, typer.Option(min=1, help="Block size; else that of the longest line.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="--temperature of the evaluation.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Read what DeepSpec's evaluation recorded, and write it as telemetry."""
    with exit_codes():
        from calib.formats.arrow import write_parquet
        from calib.formats.deepspec_jsonl import NOTE_EVALUATION, read_deepspec

        read = read_deepspec(paths, gamma, sampling_temperature=temperature)
        write_parquet(read.records, out)
        summary = {
            "file": str(out),
            "rows": len(read.records),
            "gamma": read.records.gamma,
            "ragged": read.ragged,
            "empty": read.empty,
            "notes": [NOTE_EVALUATION],
        }
        if as_json:
            typer.echo(json.dumps(summary))
            return
        typer.echo(f"Note: {NOTE_EVALUATION}.")
        typer.echo(f"{summary['rows']} rows, {read.ragged} cut at a stop token: {out}")
