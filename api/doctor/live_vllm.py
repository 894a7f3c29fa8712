"""Findings from the pages of a running vLLM: counters, version, models, and its configuration.

``/metrics``, ``/version`` and ``/v1/models`` are always served. ``/server_info`` holds the
configuration, and is served in development mode alone (``VLLM_SERVER_DEV_MODE=1``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from api.doctor.findings import Finding, Level
from api.doctor.versions import version_finding
from calib.canonical_json import parse_json_object
from calib.formats.vllm_metrics import parse_scrape

__all__ = ["CONFIGURATION", "METRICS", "MODELS", "VERSION", "vllm_findings"]

METRICS, VERSION, MODELS = "/metrics", "/version", "/v1/models"
CONFIGURATION = "/server_info?config_format=json"
_TURN_ON = "start it with --speculative-config '{…, \"enable_adaptive_verification\": true}'"


def vllm_findings(
    pages: Mapping[str, str], *, gamma: int | None, target: str | None = None
) -> Iterator[Finding]:
    """Whether this engine speculates as the service calibrates it.

    Args:
        pages: text by path; what is missing is unknown.
        gamma: draft positions that the service has; None unknown.
        target: model that the drafter is registered for; None unknown.

    Raises:
        FormatError: a page that is no such page.
    """
    if VERSION in pages:
        found = parse_json_object(pages[VERSION].encode(), VERSION).get("version")
        yield version_finding("vllm", str(found))
    if MODELS in pages and target is not None:
        yield from _models(parse_json_object(pages[MODELS].encode(), MODELS), target)
    if CONFIGURATION in pages:
        document = parse_json_object(pages[CONFIGURATION].encode(), CONFIGURATION)
        yield from _configuration(document.get("vllm_config"), gamma)
    else:
        yield Finding(
            "mode",
            Level.UNKNOWN,
            "whether adaptive verification is on cannot be seen from outside",
            "give the plugin's --status-file; in development mode /server_info shows it too",
        )
    if METRICS in pages:
        yield from _counters(pages[METRICS], gamma)


def _models(found: Mapping[str, Any], target: str) -> Iterator[Finding]:
    served = found.get("data")
    # A card with a parent is an adapter on one of the models.
    cards = [card for card in served or () if isinstance(card, Mapping) and not card.get("parent")]
    if not cards:
        return
    names = ", ".join(str(card.get("root") or card.get("id")) for card in cards)
    text = f"the engine serves {names}"
    if any(target in (card.get("root"), card.get("id")) for card in cards):
        yield Finding("target", Level.OK, text)
        return
    remedy = "if that is another model, register a drafter of its own; a path or alias is no fault"
    yield Finding("target", Level.WARN, f"{text}, the drafter is registered for {target}", remedy)


def _configuration(found: Any, gamma: int | None) -> Iterator[Finding]:
    if not isinstance(found, Mapping):
        return
    speculation = found.get("speculative_config")
    if not isinstance(speculation, Mapping):
        text = "the engine has no speculative configuration"
        yield Finding("speculation", Level.FAIL, text, "start it with --speculative-config")
        return
    if speculation.get("enable_adaptive_verification"):
        yield Finding("mode", Level.OK, f"adaptive verification of {speculation.get('method')}")
    else:
        text = "adaptive verification is off: nothing reads a confidence"
        yield Finding("mode", Level.FAIL, text, _TURN_ON)
    width = speculation.get("num_speculative_tokens")
    if isinstance(width, int):
        yield _gamma("the engine", width, gamma)
    rule = speculation.get("rejection_sample_method", "standard")
    if rule not in ("standard", "block"):
        text = f"acceptance follows {rule!r}: such rows teach nothing"
        remedy = "leave rejection_sample_method out"
        yield Finding("simulated", Level.FAIL, text, remedy)
    if speculation.get("draft_sample_method", "greedy") == "greedy":
        yield Finding(
            "draft_mode",
            Level.WARN,
            "drafts are the drafter's likeliest tokens, which no head was trained for",
            "calibrate under it, or set draft_sample_method to probabilistic: numbers fitted "
            "under one of the two are not for the other",
        )
    parallel = found.get("parallel_config")
    if isinstance(parallel, Mapping) and (parallel.get("prefill_context_parallel_size") or 1) > 1:
        text = "the plugin does not know prefill context parallelism"
        yield Finding("parallel", Level.FAIL, text, "set prefill_context_parallel_size to 1")


def _counters(page: str, gamma: int | None) -> Iterator[Finding]:
    found = parse_scrape(page, METRICS)
    if not found:
        yield Finding(
            "speculation",
            Level.FAIL,
            "the engine has no speculation counters: speculation is off",
            "start it with --speculative-config",
        )
    for series, counters in found.items():
        name = f"engine {series.engine}"
        if counters.per_position:
            yield _gamma(name, len(counters.per_position), gamma)
        if not counters.drafts:
            yield Finding("drafts", Level.UNKNOWN, f"{name} has drafted nothing yet")


def _gamma(name: str, width: int, gamma: int | None) -> Finding:
    if gamma is None or width <= gamma:
        return Finding("gamma", Level.OK, f"{name} drafts {width} positions")
    return Finding(
        "gamma",
        Level.FAIL,
        f"{name} drafts {width} positions, the service calibrates {gamma}",
        f"set num_speculative_tokens to {gamma}, or register another drafter",
    )
