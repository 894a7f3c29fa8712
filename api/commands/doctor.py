"""``dspark-calib doctor``: does the calibration reach this engine, and do its rows come back?"""

from __future__ import annotations

import dataclasses
import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import REFUSED
from api.service_calls import (
    DEFAULT_URL,
    ServiceCalls,
    ServiceToken,
    ServiceUrl,
    service_exit_codes,
)

if TYPE_CHECKING:
    from api.doctor.findings import Finding

__all__ = ["Engine", "doctor"]

_MARKS = {"ok": "ok  ", "unknown": "?   ", "warn": "warn", "fail": "FAIL"}


class Engine(StrEnum):
    """Engines that have a plugin."""

    SGLANG = "sglang"
    VLLM = "vllm"


def doctor(
    engine: Annotated[Engine, typer.Option(help="Engine to look at.")],
    drafter: Annotated[
        str | None, typer.Option(help="Its drafter at the service; without it none is asked.")
    ] = None,
    status_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The plugin's DSPARK_CALIB_STATUS_FILE.")
    ] = None,
    engine_info: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE", help="The live engine, or its saved /server_info or /metrics."
        ),
    ] = None,
    sts_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Calibration file that SGLang loads.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The drafter's weights: a safetensors file or folder."),
    ] = None,
    engine_id: Annotated[
        str | None, typer.Option(help="DSPARK_CALIB_ENGINE_ID of the engine.")
    ] = None,
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Draft positions; else those of the drafter."),
    ] = None,
    url: ServiceUrl = DEFAULT_URL,
    token: ServiceToken = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at an engine from every side that is given; exit code 1 if something is broken."""
    with service_exit_codes():
        from api.doctor.findings import Level, worst
        from calib.errors import ConfigurationError

        sides = (drafter, status_file, engine_info, sts_file, checkpoint)
        if all(side is None for side in sides):
            remedy = "give --drafter, --status-file, --engine-info, --sts-file or --checkpoint"
            raise ConfigurationError("doctor", None, remedy)
        service = None
        if drafter is not None:
            from api.doctor.service_state import fetched

            with ServiceCalls(url, token) as calls:
                service = fetched(calls, drafter)
            gamma = gamma or int(service["drafter"]["key"]["gamma"])
        findings = _findings(
            engine.value, service, status_file, engine_info, sts_file, engine_id, gamma
        )
        if checkpoint is not None:
            from api.doctor.checkpoint import checkpoint_findings

            findings += checkpoint_findings(checkpoint, gamma=gamma)
        level = worst(findings)
        if as_json:
            shown = [dataclasses.asdict(finding) for finding in findings]
            typer.echo(json.dumps({"engine": engine.value, "worst": level, "findings": shown}))
        else:
            for finding in findings:
                typer.echo(f"{_MARKS[finding.level]}  {finding.check}: {finding.text}")
                if finding.remedy is not None and finding.level is not Level.OK:
                    typer.echo(f"      -> {finding.remedy}")
        if level is Level.FAIL:
            raise typer.Exit(REFUSED)


def _findings(
    engine: str,
    service: dict[str, Any] | None,
    status_file: Path | None,
    engine_info: str | None,
    sts_file: Path | None,
    engine_id: str | None,
    gamma: int | None,
) -> list[Finding]:
    from api.doctor.calibration_file import file_findings
    from api.doctor.live_engine import engine_pages, sglang_findings
    from api.doctor.live_vllm import vllm_findings
    from api.doctor.plugin_status import absent_finding, status_findings
    from api.doctor.service_state import service_findings
    from calib.canonical_json import parse_json_object

    findings: list[Finding] = []
    status = None
    if status_file is not None and not status_file.exists():
        findings.append(absent_finding(status_file, engine))
    elif status_file is not None:
        status = parse_json_object(status_file.read_bytes(), str(status_file))
        findings += status_findings(status, engine=engine, gamma=gamma, now=time.time())
    if service is not None:
        findings += service_findings(service, status, engine_id)
    if engine_info is not None:
        pages = engine_pages(engine, engine_info)
        if engine == Engine.SGLANG:
            findings += sglang_findings(pages, gamma=gamma)
        else:
            target = None if service is None else service["drafter"]["key"]["target_model"]
            findings += vllm_findings(pages, gamma=gamma, target=target)
    if sts_file is not None:
        champion = None if service is None else service["served"]
        findings += file_findings(sts_file, gamma=gamma, champion=champion)
    return findings
