"""A live engine's own pages, and what SGLang's ``/server_info`` gives away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api.doctor.findings import Finding, Level
from api.doctor.live_vllm import CONFIGURATION, METRICS, MODELS, VERSION
from api.doctor.versions import version_finding
from calib.canonical_json import parse_json_object
from calib.errors import ConfigurationError

__all__ = ["engine_pages", "sglang_findings"]

_SECONDS = 10.0
_SERVER_INFO = "/server_info"
# The first of each is always there; others may not be served.
_PAGES = {"sglang": (_SERVER_INFO,), "vllm": (METRICS, VERSION, MODELS, CONFIGURATION)}


def engine_pages(engine: str, place: str) -> dict[str, str]:
    """Pages of an engine at an address by their path, or the one that was saved.

    Args:
        engine: ``sglang`` or ``vllm``.
        place: its address, with or without one of the paths; or a file.

    Raises:
        ConfigurationError: it cannot be fetched.
        OSError: it cannot be read.
    """
    if not place.startswith(("http://", "https://")):
        text = Path(place).read_text("utf-8")
        whole = CONFIGURATION if text.lstrip().startswith("{") else METRICS
        return {_SERVER_INFO if engine == "sglang" else whole: text}
    import httpx

    where = place.rstrip("/")
    for page in _PAGES[engine]:
        where = where.removesuffix(page)
    found = {}
    with httpx.Client(timeout=_SECONDS) as http:
        for page in _PAGES[engine]:
            try:
                found[page] = http.get(where + page).raise_for_status().text
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                if found:  # the engine is up, and does not show this page
                    continue
                reason = str(error) or type(error).__name__
                remedy = f"{reason}; is the engine up?"
                raise ConfigurationError("--engine-info", where + page, remedy) from error
    return found


def sglang_findings(pages: Mapping[str, str], *, gamma: int | None) -> Iterator[Finding]:
    """What ``/server_info`` says: version, mode, gamma, calibration file, simulated acceptance.

    Args:
        pages: as :func:`engine_pages` gives them.
        gamma: draft positions that the service has; None unknown.

    Raises:
        FormatError: it is no JSON object.
    """
    found = parse_json_object(pages[_SERVER_INFO].encode(), "server_info")
    if isinstance(found.get("version"), str):
        yield version_finding("sglang", found["version"])
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
