"""``dspark-calib export tensorrt-llm``: temperatures under TensorRT-LLM's own key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from api.commands.calibration_source import (
    SourceArgument,
    SourceRevision,
    sts_of_source,
    temperatures_shown,
)
from api.service_calls import DEFAULT_URL, ServiceToken, ServiceUrl, service_exit_codes

__all__ = ["export_tensorrt_llm"]

_PROVENANCE = ("gamma", "status", "drafter", "revision", "publication")


def export_tensorrt_llm(
    source: SourceArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, in one step.")],
    gamma: Annotated[
        int | None, typer.Option(min=1, help="Block size; a longer calibration is cut to it.")
    ] = None,
    revision: SourceRevision = None,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written.")] = False,
) -> None:
    """Write the STS values that TensorRT-LLM loads at its start."""
    with service_exit_codes():
        from calib.atomic_files import write_bytes_atomically
        from calib.formats.tensorrt_llm import parse_tensorrt_llm, tensorrt_llm_bytes

        found = json.loads(sts_of_source(source, gamma, revision, url, token))
        extra = {name: found[name] for name in _PROVENANCE if name in found}
        data = tensorrt_llm_bytes(found["temperatures"], extra)
        # Read back before a file is touched.
        written = parse_tensorrt_llm(data, gamma, source=source)
        write_bytes_atomically(out, data + b"\n")
        numbers = temperatures_shown(written)
        said = json.dumps({"file": str(out), "temperatures": list(written)})
        typer.echo(said if as_json else f"{out}: gamma {len(written)}, temperatures {numbers}")
