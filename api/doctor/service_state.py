"""Findings from the service: what it has for the drafter, and what it has heard of the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from api.doctor.findings import Finding, Level
from api.service_calls import ServiceProblemError

if TYPE_CHECKING:
    from api.service_calls import ServiceCalls

__all__ = ["clock_finding", "fetched", "service_findings"]

_CLOCK_WARN, _CLOCK_FAIL = 5.0, 60.0


def fetched(service: ServiceCalls, drafter: str) -> dict[str, Any]:
    """The service's word, by part: ``drafter``, ``served``, ``engines`` (None where not allowed).

    Raises:
        ServiceProblemError: the service or the drafter cannot be reached.
    """
    answer = service.call("GET", f"/v1/drafters/{drafter}")
    own = answer.json()
    gamma = {"gamma": str(own["key"]["gamma"])}
    place = f"/v1/drafters/{drafter}"
    try:
        engines = service.call("GET", f"{place}/engines").json()
    except ServiceProblemError as error:
        if error.status not in (401, 403):
            raise
        engines = None
    return {
        "drafter": own,
        "served": service.call("GET", f"{place}/temperatures", parameters=gamma).json(),
        "engines": engines,
        "date": answer.headers.get("Date"),
    }


def clock_finding(date: str | None, now: float) -> Finding:
    """How far this machine's clock is from the service's.

    ``valid_until`` is judged by the engine's clock, and rows carry its time.
    """
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except (TypeError, ValueError):
        return Finding("clock", Level.UNKNOWN, "the service's answer has no date")
    apart = abs(now - there)
    text = f"this machine and the service are {apart:.0f} s apart"
    remedy = "let both follow one time server: staleness and windows go by the clock"
    if apart > _CLOCK_FAIL:
        return Finding("clock", Level.FAIL, text, remedy)
    if apart > _CLOCK_WARN:
        return Finding("clock", Level.WARN, text, remedy)
    return Finding("clock", Level.OK, text)


def service_findings(
    found: Mapping[str, Any], status: Mapping[str, Any] | None, engine_id: str | None
) -> Iterator[Finding]:
    """What the service serves, whether the engine applied it, and how its rows are counted.

    Args:
        found: as :func:`fetched` gives it.
        status: the plugin's status; None without one.
        engine_id: name under which the engine polls; None for all.
    """
    yield clock_finding(found["date"], time.time())
    served, key = found["served"], found["drafter"]["key"]
    yield _served(served)
    if status is not None and status.get("attached") is True:
        yield _applied(served, status)
        yield from _counted_alike(key, status)
    if found["engines"] is not None:
        yield from _engines(found["engines"], engine_id)


def _served(served: Mapping[str, Any]) -> Finding:
    text = f"revision {served['revision']}, status {served['status']}"
    if served["status"] in ("fitted", "partial"):
        if served.get("affine") is not None and set(served["temperatures"]) == {1.0}:
            text += (
                ": slopes and intercepts alone, which the plugins apply; an engine of temperatures "
                "runs raw confidence"
            )
        return Finding("served", Level.OK, f"the service serves {text}")
    remedy = "let telemetry come in, then: dspark-calib recalibrate DRAFTER"
    return Finding("served", Level.WARN, f"{text}: nothing is calibrated", remedy)


def _applied(served: Mapping[str, Any], status: Mapping[str, Any]) -> Finding:
    mine, theirs = status.get("publication"), served["publication"]
    if mine == theirs:
        return Finding("applied", Level.OK, f"the engine runs publication {mine}, the newest")
    text = f"the engine runs publication {mine}, the service serves {theirs}"
    if status.get("applies") is False:
        return Finding("applied", Level.WARN, f"{text}: it applies nothing")
    remedy = (
        "wait for the next steps; an idle engine applies nothing. If it stays behind, see its log"
    )
    return Finding("applied", Level.WARN, text, remedy)


def _counted_alike(key: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Finding]:
    if key["slot_convention"] == "anchor_excluded":
        yield Finding("slots", Level.OK, "slots are counted without the anchor, as the plugin does")
    else:
        yield Finding(
            "slots",
            Level.FAIL,
            "the drafter is registered with anchor_included; the plugin sends no anchor slot",
            "register it with slot_convention anchor_excluded",
        )
    source, expected = status.get("source", "head"), key.get("confidence_source", "head")
    if source != expected:
        yield Finding(
            "confidence_source",
            Level.FAIL,
            f"the engine's confidence is {source}, the drafter is registered with {expected}",
            f"register it with confidence_source {source}: the numbers mean something else",
        )


def _engines(found: Mapping[str, Any], engine_id: str | None) -> Iterator[Finding]:
    engines = [row for row in found["engines"] if engine_id in (None, row["engine"])]
    if not engines:
        who = "no engine" if engine_id is None else f"engine {engine_id} never"
        text = f"{who} has polled this drafter" if engine_id is None else f"{who} polled"
        yield Finding("polls", Level.FAIL, text, "start it with DSPARK_CALIB_URL and _DRAFTER set")
        return
    counts = {
        name: sum(row["status"] == name for row in engines)
        for name in ("on_champion", "behind", "silent", "unreported")
    }
    shown = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count
    )
    if counts["on_champion"] == len(engines):
        yield Finding("polls", Level.OK, f"engines: {shown}")
        return
    remedy = "GET /v1/drafters/DRAFTER/engines names them; a silent engine has ended or is cut off"
    yield Finding("polls", Level.WARN, f"engines: {shown}", remedy)
