"""``dspark-calib export tensorrt-llm``: temperatures under TensorRT-LLM's own key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from api.boundary import exit_codes
from api.commands.export_sglang import calibration_of_document

__all__ = ["export_tensorrt_llm"]


def export_tensorrt_llm(
    source: Annotated[
        Path,
        typer.Argument(
            help="calibration.json, report.json, a revision, a polled answer or an STS file.",
            metavar="FILE",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, in one step.")],
    gamma: Annotated[
        int | None, typer.Option(min=1, help="Block size; a longer calibration is cut to it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written.")] = False,
) -> None:
    """Write the STS values that TensorRT-LLM loads at its start."""
    with exit_codes():
        from calib.atomic_files import write_bytes_atomically
        from calib.canonical_json import parse_json_object
        from calib.formats.tensorrt_llm import parse_tensorrt_llm, tensorrt_llm_bytes

        document = parse_json_object(source.read_bytes(), str(source))
        found = calibration_of_document(document, str(source))
        own = found if gamma is None else found.prefix(gamma)
        extra = {"gamma": own.gamma, "status": str(own.status)}
        revision = document.get("revision")
        if isinstance(revision, int) and not isinstance(revision, bool):
            extra["revision"] = revision
        data = tensorrt_llm_bytes(own.temperatures, extra)
        written = parse_tensorrt_llm(data, own.gamma, source=str(source))
        write_bytes_atomically(out, data + b"\n")
        numbers = ", ".join(f"{value:g}" for value in written)
        said = json.dumps({"file": str(out), "temperatures": list(written)})
        typer.echo(said if as_json else f"{out}: gamma {own.gamma}, temperatures {numbers}")
