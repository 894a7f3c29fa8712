"""Findings from a live engine's own pages: SGLang's ``/server_info``, vLLM's ``/metrics``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api.doctor.findings import Finding, Level
from calib.canonical_json import parse_json_object
from calib.errors import ConfigurationError
from calib.formats.vllm_metrics import parse_scrape

__all__ = ["engine_page", "sglang_findings", "vllm_findings"]

_SECONDS = 10.0
_PAGES = {"sglang": "/server_info", "vllm": "/metrics"}


def engine_page(engine: str, place: str) -> str:
    """The page of an engine at an address, or as it was saved.

    Raises:
        ConfigurationError: it cannot be fetched.
        OSError: it cannot be read.
    """
    if not place.startswith(("http://", "https://")):
        return Path(place).read_text("utf-8")
    import httpx

    where = place.rstrip("/")
    where = where if where.endswith(_PAGES[engine]) else where + _PAGES[engine]
    try:
        return httpx.get(where, timeout=_SECONDS).raise_for_status().text
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise ConfigurationError("--engine-info", where, f"{reason}; is the engine up?") from error


def sglang_findings(page: str, *, gamma: int | None) -> Iterator[Finding]:
    """What ``/server_info`` says: mode, gamma, calibration file, simulated acceptance.

    Raises:
        FormatError: it is no JSON object.
    """
    found = parse_json_object(page.encode(), "server_info")
    algorithm = str(found.get("speculative_algorithm") or "").upper()
    if "speculative_algorithm" in found and algorithm != "DSPARK":
        yield Finding(
            "speculation",
            Level.FAIL,
            f"the engine speculates with {algorithm or 'nothing'}",
            "start it with --speculative-algorithm DSPARK",
        )
        return
    yield from _sglang_file(found)
    states = found.get("internal_states") or []
    records = [
        state["dspark_info_record"]
        for state in states
        if isinstance(state, Mapping) and isinstance(state.get("dspark_info_record"), Mapping)
    ]
    if not records:
        yield Finding(
            "mode",
            Level.UNKNOWN,
            "the engine shows no step records, so mode and gamma cannot be seen here",
            "start it with SGLANG_DSPARK_DEBUG_DUMP=core, or give the plugin's --status-file",
        )
    for record in records:
        yield from _sglang_record(record, gamma)


def vllm_findings(page: str, *, gamma: int | None) -> Iterator[Finding]:
    """What ``/metrics`` says: whether it speculates, and with how many positions.

    Raises:
        FormatError: it is no page of metrics.
    """
    found = parse_scrape(page, "/metrics")
    if not found:
        yield Finding(
            "speculation",
            Level.FAIL,
            "the engine has no speculation counters: speculation is off",
            "start it with --speculative-config",
        )
    for series, counters in found.items():
        width = len(counters.per_position)
        if gamma is not None and width > gamma:
            yield Finding(
                "gamma",
                Level.FAIL,
                f"engine {series.engine} drafts {width} positions, the service calibrates {gamma}",
                f"set num_speculative_tokens to {gamma}, or register another drafter",
            )
        else:
            yield Finding("gamma", Level.OK, f"engine {series.engine} drafts {width} positions")


def _sglang_file(found: Mapping[str, Any]) -> Iterator[Finding]:
    name = "speculative_dspark_confidence_sts_path"
    if name in found and not found[name]:
        yield Finding(
            "file",
            Level.WARN,
            "the engine loaded no calibration file: only the plugin can calibrate it",
            "give --speculative-dspark-confidence-sts-path an identity file at least: "
            "dspark-calib export sglang DRAFTER --identity --out FILE",
        )


def _sglang_record(record: Mapping[str, Any], gamma: int | None) -> Iterator[Finding]:
    mode, own = record.get("mode"), record.get("gamma")
    if mode == "static":
        yield Finding(
            "mode",
            Level.FAIL,
            "mode static builds no confidence head",
            "set SGLANG_RAGGED_VERIFY_MODE=compact, or cap-accept",
        )
    else:
        yield Finding("mode", Level.OK, f"mode {mode} has a confidence head")
    if isinstance(own, int) and gamma is not None and own > gamma:
        text = f"the engine runs gamma {own}, the service calibrates gamma {gamma}"
        yield Finding("gamma", Level.FAIL, text, f"run {gamma} draft positions")
    elif isinstance(own, int):
        yield Finding("gamma", Level.OK, f"the engine runs gamma {own}")
    if record.get("simulate_acc_len") is not None:
        yield Finding(
            "simulated",
            Level.FAIL,
            f"acceptance is simulated: {json.dumps(record['simulate_acc_len'])}",
            "unset SGLANG_SIMULATE_ACC_LEN: such rows teach nothing",
        )
