"""Findings from the plugin's status file, ``DSPARK_CALIB_STATUS_FILE`` of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from api.doctor.findings import Finding, Level

__all__ = ["absent_finding", "status_findings"]

_DEAD_SECONDS = 60.0  # the plugin writes every 10
_AHEAD_SECONDS = 5.0
_FAULTS = {
    "not_applied": "numbers could not be put into the engine's buffer; its log says why",
    "broadcasts_failed": "the ranks could not be told alike; the engine's log says why",
    "telemetry_faults": "rows could not be read from the engine's step; its log says why",
}
_FAULT = "poll_failed_"
_UNREACHED = "check DSPARK_CALIB_URL, and that the service runs"
_DISBELIEVED = "what answers there is no dspark-calib, or something between changes its answers"
_REMEDIES = {
    "connect": _UNREACHED,
    "timeout": _UNREACHED,
    "conflict": "compare gamma: the engine's is longer than the drafter's, or register another",
    "not_found": "register the drafter, or mend DSPARK_CALIB_DRAFTER",
    "unauthorized": "give a token with the scope read:temperatures",
    "server_error": "look at the service's log",
    "too_many_requests": "poll less often: DSPARK_CALIB_INTERVAL",
}
_NAMED_BY = {"sglang": "SGLANG_PLUGINS", "vllm": "VLLM_PLUGINS"}
_LOST = {
    "rows_dropped": "the queue was full: lower DSPARK_CALIB_TELEMETRY_SHARE, or look at the "
    "service's ingest",
    "rows_rejected": "the service refused rows: its answer in the engine's log names field and "
    "reason",
    "rows_other_key": "rows of another key than the service calibrates were not sent",
}


def status_findings(
    status: Mapping[str, Any], *, engine: str, gamma: int | None, now: float
) -> Iterator[Finding]:
    """What the plugin says of itself.

    Args:
        status: contents of its file.
        engine: ``sglang`` or ``vllm``, as the caller takes it to be.
        gamma: draft positions that the service has; None unknown.
        now: seconds since the epoch, on this machine.
    """
    yield _age(status, now)
    other = status.get("engine", engine)
    if other != engine:
        yield Finding("engine", Level.FAIL, f"a status of {other}", f"give --engine {other}")
    if status.get("attached") is not True:
        reason = status.get("reason")
        text = "the plugin stepped aside" + (f": {reason}" if reason else "")
        remedy = status.get("remedy") or "the engine's log says more, after dspark-calib"
        yield Finding("attached", Level.FAIL, text, str(remedy))
        return
    yield Finding("attached", Level.OK, "the plugin is attached")
    yield _gamma(status.get("gamma"), gamma)
    yield from _mode(status)
    yield from _counters(status)
    yield from _client(status.get("client"))


def absent_finding(path: Path, engine: str) -> Finding:
    """What it means that there is no status file: a plugin that steps aside leaves one too.

    Args:
        path: where it should be.
        engine: ``sglang`` or ``vllm``.
    """
    replicas = sorted(found.name for found in path.parent.glob(f"{path.stem}-dp*{path.suffix}"))
    if replicas:
        text = f"there is no {path}, but {', '.join(replicas)} beside it"
        remedy = "replicas of an engine write one file each: give one of these"
        return Finding("attached", Level.UNKNOWN, text, remedy)
    return Finding(
        "attached",
        Level.FAIL,
        f"there is no {path}: the engine has not come so far, has no plugin, or writes elsewhere",
        "install dspark-calib-client into the engine's environment, and set DSPARK_CALIB_URL and "
        f"DSPARK_CALIB_STATUS_FILE in it; {_NAMED_BY[engine]}, where set, must name dspark_calib",
    )


def _age(status: Mapping[str, Any], now: float) -> Finding:
    written = status.get("written_at")
    if not isinstance(written, int | float):
        return Finding("alive", Level.UNKNOWN, "the status has no time", "give a plugin's own file")
    age = now - written
    if age < -_AHEAD_SECONDS:
        text = f"the status is {-age:.0f} s in the future"
        return Finding("clock", Level.FAIL, text, "set this machine's clock, or the engine's")
    if age > _DEAD_SECONDS and status.get("attached") is True:
        text = f"the status was written {age:.0f} s ago"
        return Finding("alive", Level.FAIL, text, "the engine ended, or its disk refuses writes")
    return Finding("alive", Level.OK, f"the status was written {max(age, 0.0):.0f} s ago")


def _gamma(found: Any, wanted: int | None) -> Finding:
    if wanted is None or not isinstance(found, int):
        return Finding("gamma", Level.UNKNOWN, f"the engine runs gamma {found}")
    if found == wanted:
        return Finding("gamma", Level.OK, f"engine and service have gamma {found}")
    text = f"the engine runs gamma {found}, the service calibrates gamma {wanted}"
    if found < wanted:
        return Finding("gamma", Level.OK, f"{text}: it gets the first {found} numbers")
    return Finding("gamma", Level.FAIL, text, f"run {wanted} draft positions, or register another")


def _mode(status: Mapping[str, Any]) -> Iterator[Finding]:
    if status.get("mode") == "static":
        yield Finding(
            "mode",
            Level.FAIL,
            "mode static builds no confidence head",
            "set SGLANG_RAGGED_VERIFY_MODE=compact, or cap-accept",
        )
    if status.get("collecting"):
        yield Finding(
            "identity_only",
            Level.WARN,
            "the engine collects shards, which must be made at identity: nothing is applied",
            "unset SGLANG_DSPARK_STS_COLLECT_PATH when that is over; the plugin's own telemetry "
            "needs no collecting",
        )
    elif status.get("applies") is False:
        yield Finding(
            "applies", Level.WARN, "telemetry only: nothing is applied", "set DSPARK_CALIB_APPLY=1"
        )
    if status.get("buffer_replaced"):
        yield Finding(
            "buffer",
            Level.FAIL,
            "something rebound the engine's temperatures: captured graphs read the old ones",
            "restart the engine, and update temperatures through the plugin alone",
        )
    if status.get("form_refused"):
        yield Finding(
            "form",
            Level.WARN,
            f"DSPARK_CALIB_FORM={status['form_refused']} has no effect: SGLang's head divides "
            "logits and adds nothing",
            "leave it out, or fit temperatures: intercepts reach vLLM alone",
        )
    if status.get("holding"):
        yield Finding(
            "flapping",
            Level.WARN,
            "the service changed its mind too often: the last calm numbers stay",
            "look for two services with different databases, or a script that promotes",
        )


def _counters(status: Mapping[str, Any]) -> Iterator[Finding]:
    for name, remedy in _FAULTS.items():
        count = status.get(name, 0)
        if count:
            yield Finding(name, Level.FAIL, f"{name.replace('_', ' ')}: {count}", remedy)
    if status.get("telemetry") is False and status.get("rank", 0) == 0:
        yield Finding(
            "telemetry", Level.FAIL, "telemetry ended after too many faults", "restart the engine"
        )
    left_out = status.get("steps_left_out", 0)
    if left_out:
        yield Finding(
            "steps_left_out",
            Level.WARN,
            f"{left_out} steps were not copied to the host: copies were still under way",
            "harmless if rare; a share below 1 does not help, the steps are what is too fast",
        )
    lost = status.get("steps_lost", 0)
    if lost:
        text = f"{lost} steps were asked for and never came from the device"
        yield Finding("steps_lost", Level.FAIL, text, "look at the engine's log: its device hangs")


def _client(client: Any) -> Iterator[Finding]:
    if not isinstance(client, Mapping):
        return
    if client.get("key_mismatch"):
        yield Finding(
            "key",
            Level.FAIL,
            "the service calibrates another key: the engine runs at identity",
            "register this drafter, or give DSPARK_CALIB_KEY the digest that the service shows",
        )
    state = client.get("state")
    if state == "fresh":
        yield Finding("state", Level.OK, f"numbers are fresh: publication {client['publication']}")
    elif state == "stale":
        age = client.get("age_seconds")
        text = "numbers are stale" + ("" if age is None else f": confirmed {age:.0f} s ago")
        yield Finding("state", Level.WARN, text, "check that the engine reaches the service")
    else:
        yield _never_used(client)
    for name, remedy in _LOST.items():
        count = client.get(name, 0)
        if count:
            yield Finding(name, Level.WARN, f"{name.replace('_', ' ')}: {count}", remedy)


def _never_used(client: Mapping[str, Any]) -> Finding:
    """Why no answer of the service was ever used, by what failed most."""
    faults = {
        name.removeprefix(_FAULT): count
        for name, count in client.items()
        if name.startswith(_FAULT) and isinstance(count, int)
    }
    failed = client.get("polls_failed", 0)
    if not faults and not failed:
        remedy = "look again: the first comes within DSPARK_CALIB_INTERVAL seconds of the start"
        return Finding("state", Level.UNKNOWN, "no poll of the service has ended yet", remedy)
    if not faults:
        text = f"the service was never reached ({failed} polls failed)"
        return Finding("state", Level.FAIL, text, _UNREACHED)
    worst = max(faults, key=lambda kind: faults[kind])
    text = f"no answer of the service could be used: {worst.replace('_', ' ')}, {failed} polls"
    return Finding("state", Level.FAIL, text, _REMEDIES.get(worst, _DISBELIEVED))
