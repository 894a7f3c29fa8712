"""``dspark-calib regret``: what each way of calibrating is worth in tokens a second."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import exit_codes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from calib.throughput_document import StudyRequest

__all__ = ["regret", "regret_view"]

_DEFAULT_LOADS = "1,2,4,8,16,32,64,128,256,512"
_MOST_SEGMENTS = 12


class SchedulePolicy(StrEnum):
    """How steps are scheduled."""

    EARLY_STOP = "early_stop"
    LAGGED = "lagged"
    UNCONSTRAINED = "unconstrained"


def regret(
    telemetry: Annotated[
        list[str],
        typer.Argument(
            help="Parquet, Arrow or JSON-lines telemetry, or SGLang's .pt shards.", metavar="FILE…"
        ),
    ],
    cost_table: Annotated[
        Path | None,
        typer.Option(
            help="Step curve of the engine (SGLang's, vLLM's or measured); smooth, kneed and "
            "staircase curves with a knee at 256 tokens when left out."
        ),
    ] = None,
    gamma: Annotated[
        int | None,
        typer.Option(min=1, help="Block size; needed for .pt shards, checked against the others."),
    ] = None,
    loads: Annotated[
        str, typer.Option(help="Requests of a step, with commas between.")
    ] = _DEFAULT_LOADS,
    policy: Annotated[
        SchedulePolicy | None,
        typer.Option(
            help="lagged with an engine's table and early_stop else when left out; unconstrained "
            "anticipates: a ceiling, not something to run."
        ),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="A calibration to judge beside the fitted ones.")
    ] = None,
    fit_on: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Fit on these files instead of splitting by prompt."),
    ] = None,
    evaluate_share: Annotated[
        float, typer.Option(help="Share of prompts that are judged, between 0 and 1.")
    ] = 0.5,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the document here, as JSON.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the document as JSON instead of tables.")
    ] = False,
) -> None:
    """Say what calibration is worth in throughput on a log, and to which segments."""
    with exit_codes():
        # Here, not above: --help must not wait for NumPy and SciPy.
        from rich.console import Console

        from api.output import console
        from api.telemetry_input import read_telemetry
        from calib.atomic_files import write_bytes_atomically
        from calib.throughput_document import study_document

        with Console(stderr=True).status("reading telemetry") as progress:
            given = read_telemetry(telemetry, gamma)
            before = None if not fit_on else read_telemetry(fit_on, given.records.gamma).records
            request = _request(
                given.records.gamma, cost_table, loads, policy, calibration, evaluate_share
            )
            progress.update(f"replaying {len(given.records):,} blocks")
            document = study_document(given.records, request, source=given.source, fit_on=before)
        encoded = json.dumps(document, allow_nan=False, ensure_ascii=False)
        if out is not None:
            write_bytes_atomically(out, encoded.encode() + b"\n")
        if as_json:
            typer.echo(encoded)
            return
        screen = console()
        for part in regret_view(document):
            screen.print(part)


def _request(
    gamma: int,
    cost_table: Path | None,
    loads: str,
    policy: SchedulePolicy | None,
    calibration: Path | None,
    share: float,
) -> StudyRequest:
    from api.calibration_input import read_calibration
    from api.commands.number_list import number_list
    from calib.cost_table_files import load_cost_table
    from calib.errors import ConfigurationError
    from calib.throughput_document import StudyRequest, analytic_curves
    from calib.throughput_study import StudyRules

    sizes = number_list(int, "--loads", loads, "1,16,128")
    if not sizes or min(sizes) < 1:
        raise ConfigurationError("--loads", loads, "give counts of at least 1, as 1,16,128")
    curves = (
        analytic_curves(sizes, gamma)
        if cost_table is None
        else {cost_table.stem: load_cost_table(cost_table)}
    )
    extra = {} if calibration is None else {"given": read_calibration(calibration, gamma)}
    rules = StudyRules(loads=sizes, policy=None if policy is None else policy.value)
    return StudyRequest(curves, rules, evaluation_share=share, extra=extra)


def regret_view(document: dict[str, Any]) -> list[RenderableType]:
    """Tables and sentences of a study.

    Args:
        document: of :func:`calib.throughput_document.study_document`.
    """
    study = document["study"]
    rows = document["rows"]
    column = document["split"]["column"]
    where = column if column == "another file" else f"other {column}s"
    parts: list[RenderableType] = [
        f"{rows['judged']:,} blocks replayed, {rows['fit']:,} of {where} fitted on; "
        f"policy: {document['policy']}."
    ]
    curves = list(dict.fromkeys(cell["curve"] for cell in study["cells"]))
    for curve in curves:
        cells = [cell for cell in study["cells"] if cell["curve"] == curve]
        parts.append(_table(f"Θ against raw confidence, {curve} (%)", cells, "gain"))
        parts.append(_table(f"Θ as forecast against Θ as it was, {curve} (%)", cells, "bias"))
    if document["outcomes"]["kind"] == "doubly_robust":
        worst = max(cell["modelled_share"] for cell in study["cells"])
        parts.append(f"Up to {worst:.1%} of a cell's tokens rest on the model alone.")
    for arm, reason in study["missing"].items():
        parts.append(f"Left out: {arm}: {reason}")
    for skipped in study["skipped"]:
        parts.append(f"Too few rows for {skipped['load']} requests a step ({skipped['curve']}).")
    parts.append(_segments(document["segments"]))
    return parts


def _table(title: str, cells: list[dict[str, Any]], what: str) -> RenderableType:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("arm")
    loads = list(dict.fromkeys(cell["load"] for cell in cells))
    for load in loads:
        table.add_column(f"R={load}", justify="right")
    for arm in dict.fromkeys(cell["arm"] for cell in cells):
        shown = {cell["load"]: cell for cell in cells if cell["arm"] == arm}
        words = [_bias(shown[load]) if what == "bias" else _gain(shown[load]) for load in loads]
        if any(words):
            table.add_row(arm, *words)
    return table


def _gain(cell: dict[str, Any]) -> str:
    if cell["gain"] is None:
        return f"{cell['theta']:,.0f}/s"
    return _percent(cell["gain"], cell["gain_low"], cell["gain_high"])


def _bias(cell: dict[str, Any]) -> str:
    bias = cell["forecast_bias"]
    return "" if bias is None or cell["arm"] == "hindsight" else _percent(bias)


def _percent(
    value: float, low: float | None = None, high: float | None = None, digits: int = 2
) -> str:
    """A signed share in per cent with half of its interval; no minus before a zero."""
    shown = f"{round(100.0 * value, digits) + 0.0:+.{digits}f}"
    if low is None or high is None:
        return shown
    return f"{shown}±{50.0 * (high - low):.{digits}f}"


def _segments(found: dict[str, Any]) -> RenderableType:
    from rich.table import Table

    if not found["values"]:
        return f"No value by segment: {found['reason'] or 'no segments'}"
    title = (
        f"What Θ would lose if one segment alone were raw: {found['arm']}, "
        f"{found['curve']}, R={found['load']} (%)"
    )
    table = Table(title=title, title_justify="left")
    for name in ("segment", "rows", "verified", "accepted", "forecast", "raw forecast", "value"):
        table.add_column(name, justify="left" if name == "segment" else "right")
    for value in found["values"][:_MOST_SEGMENTS]:
        tags = ", ".join(value["tags"].values()) or "all traffic"
        numbers = (value[name] for name in ("verified", "accepted", "forecast", "raw_forecast"))
        worth = _percent(value["value"], value["value_low"], value["value_high"], 3)
        table.add_row(tags, f"{value['rows']:,}", *(f"{one:.3f}" for one in numbers), worth)
    return table
