"""``dspark-calib export deepspec``: a calibration or telemetry in DeepSpec's own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes
from api.commands.calibration_source import calibration_of_document

__all__ = ["export_deepspec"]

_TELEMETRY = (".parquet", ".arrow")


def export_deepspec(
    source: Annotated[
        Path,
        typer.Argument(
            help="Telemetry (.parquet), written as records; or a calibration, written as the "
            "file of --confidence-calibration-path.",
            metavar="FILE",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, in one step.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written.")] = False,
) -> None:
    """Write what DeepSpec's fitter reads, or what its evaluation applies."""
    with exit_codes():
        from api.telemetry_input import read_telemetry
        from calib.atomic_files import write_bytes_atomically
        from calib.canonical_json import parse_json_object
        from calib.formats.deepspec_jsonl import deepspec_calibration_bytes, deepspec_lines

        if source.suffix in _TELEMETRY:
            lines = list(deepspec_lines(read_telemetry([str(source)], None).records))
            write_bytes_atomically(out, "".join(f"{line}\n" for line in lines).encode())
            what = f"{len(lines)} records"
        else:
            document = parse_json_object(source.read_bytes(), str(source))
            found = calibration_of_document(document, str(source))
            data = deepspec_calibration_bytes(found.temperatures, sources=[source.name])
            write_bytes_atomically(out, data + b"\n")
            what = f"{found.gamma} temperatures"
        typer.echo(json.dumps({"file": str(out), "wrote": what}) if as_json else f"{out}: {what}")
