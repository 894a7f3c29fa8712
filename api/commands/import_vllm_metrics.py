"""``dspark-calib import vllm-metrics``: marginal acceptance rates from Prometheus counters."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.boundary import exit_codes

if TYPE_CHECKING:
    from calib.formats.vllm_metrics import EngineRates, EngineSeries, SpeculationCounters

__all__ = ["import_vllm_metrics"]

_SECONDS = 10.0  # for one scrape
_LARGEST_BODY = 32 * 2**20


def import_vllm_metrics(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Saved scrapes in the order of time, or the address of one server's /metrics.",
            metavar="URL|FILE…",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="JSON file to write.")] = None,
    seconds: Annotated[
        float,
        typer.Option(min=0.0, help="With an address: scrape again after so long; 0: once."),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rates as JSON.")] = False,
) -> None:
    """Read what vLLM counted, for drafters that send no telemetry: rates to watch, no more."""
    with exit_codes():
        from calib.atomic_files import write_bytes_atomically
        from calib.formats.vllm_metrics import (
            NOTE_MARGINAL,
            NOTE_TRIMMED,
            pooled_length,
            rates_of_scrapes,
        )

        rates = rates_of_scrapes(_scrapes(sources, seconds))
        pooled = pooled_length(rates)
        document = {
            "kind": "marginal_rates",
            "notes": [NOTE_MARGINAL, NOTE_TRIMMED],
            "engines": [_shown(entry) for entry in rates],
            "accepted_length": pooled.accepted_length,
            "missing": list(pooled.missing),
        }
        text = json.dumps(document, allow_nan=False)
        if out is not None:
            write_bytes_atomically(out, text.encode() + b"\n")
        if as_json:
            typer.echo(text)
            return
        for entry in rates:
            typer.echo(_sentence(entry))
        if not rates:
            typer.echo("No speculation counters: speculation is off on this server.")
        for note in (NOTE_MARGINAL, NOTE_TRIMMED):
            typer.echo(f"Note: {note}.")


def _scrapes(sources: list[str], seconds: float) -> list[dict[EngineSeries, SpeculationCounters]]:
    from calib.errors import ConfigurationError
    from calib.formats.vllm_metrics import parse_scrape

    addresses = [source for source in sources if source.startswith(("http://", "https://"))]
    if addresses and len(sources) > 1:
        raise ConfigurationError("URL|FILE", sources[1], "give one address, or files only")
    if not addresses:
        if seconds:
            raise ConfigurationError("--seconds", seconds, "leave it out: files are saved already")
        return [parse_scrape(Path(name).read_text("utf-8"), name) for name in sources]
    found = [parse_scrape(_fetched(addresses[0]), addresses[0])]
    if seconds:
        time.sleep(seconds)
        found.append(parse_scrape(_fetched(addresses[0]), addresses[0]))
    return found


def _fetched(url: str) -> str:
    import httpx

    from calib.errors import ConfigurationError

    where = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    try:
        with httpx.Client(timeout=_SECONDS) as client, client.stream("GET", where) as answer:
            answer.raise_for_status()
            body = bytearray()
            for part in answer.iter_bytes():
                body += part
                if len(body) > _LARGEST_BODY:
                    raise ConfigurationError("URL", where, "this is too long for metrics")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise ConfigurationError("URL", where, f"{reason}; give http://host:port") from error
    return body.decode("utf-8", "replace")


def _shown(entry: EngineRates) -> dict[str, Any]:
    fields = dataclasses.asdict(entry)
    series = fields.pop("series")
    return {"model": series[0], "engine": series[1], **fields}


def _sentence(entry: EngineRates) -> str:
    name = f"{entry.series.model or 'model'} engine {entry.series.engine}"
    if not entry.measured:
        return f"{name}: not measured ({entry.reason})"
    shown = ", ".join("-" if rate is None else f"{rate:.3f}" for rate in entry.marginal)
    resets = f", counters started anew {entry.resets} times" if entry.resets else ""
    return (
        f"{name}: {entry.drafts} rounds, accepted length {entry.accepted_length:.3f}, "
        f"marginal by position {shown}{resets}"
    )
