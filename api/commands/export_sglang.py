"""``dspark-calib export sglang``: the file of ``--speculative-dspark-confidence-sts-path``."""

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

__all__ = ["export_sglang"]


def export_sglang(
    source: SourceArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, in one step.")],
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Block size of the engine; a longer calibration is cut to it."),
    ] = None,
    revision: SourceRevision = None,
    identity: Annotated[
        bool, typer.Option("--identity", help="Ones only, as the plugin and collecting need.")
    ] = False,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written.")] = False,
) -> None:
    """Write temperatures as the JSON that SGLang loads at its start."""
    with service_exit_codes():
        from calib.atomic_files import write_bytes_atomically
        from calib.formats.sglang_sts import parse_sts, sts_bytes

        data = sts_of_source(source, gamma, revision, url, token)
        if identity:
            count = len(parse_sts(data, gamma, source=source).temperatures)
            data = sts_bytes([1.0] * count, dataset=source, extra={"revision": 0})
        # Read back as the engine will, before its file is touched.
        written = parse_sts(data, gamma, source=source)
        write_bytes_atomically(out, data.rstrip(b"\n") + b"\n")
        numbers = temperatures_shown(written.temperatures)
        said = {"file": str(out), "temperatures": list(written.temperatures)}
        line = f"{out}: gamma {len(written.temperatures)}, temperatures {numbers}"
        typer.echo(json.dumps(said) if as_json else line)
