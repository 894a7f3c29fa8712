"""Each trouble that the plugin can report is named with its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.doctor.findings import Level
from api.doctor.plugin_status import absent_finding, status_findings

NOW = 1_800_000_000.0
GOOD: dict[str, Any] = {
    "written_at": NOW - 3.0,
    "attached": True,
    "applies": True,
    "collecting": False,
    "gamma": 7,
    "mode": "compact",
    "rank": 0,
    "telemetry": True,
    "not_applied": 0,
    "client": {"state": "fresh", "publication": 4, "key_mismatch": 0, "age_seconds": 1.0},
}


def levels(wanted: int | None = 7, **changes: Any) -> dict[str, Level]:
    found = list(status_findings({**GOOD, **changes}, engine="sglang", gamma=wanted, now=NOW))
    assert all(entry.remedy for entry in found if entry.level in (Level.WARN, Level.FAIL))
    return {entry.check: entry.level for entry in found}


def test_a_healthy_plugin_has_nothing_to_mend() -> None:
    assert set(levels().values()) == {Level.OK}


@pytest.mark.parametrize(
    ("changes", "check", "level"),
    [
        ({"attached": False, "reason": "unknown version"}, "attached", Level.FAIL),
        ({"gamma": 8}, "gamma", Level.FAIL),
        ({"mode": "static"}, "mode", Level.FAIL),
        ({"collecting": True}, "identity_only", Level.WARN),
        ({"applies": False}, "applies", Level.WARN),
        ({"buffer_replaced": True}, "buffer", Level.FAIL),
        ({"holding": True}, "flapping", Level.WARN),
        ({"form_refused": "affine"}, "form", Level.WARN),
        ({"steps_left_out": 3}, "steps_left_out", Level.WARN),
        ({"steps_lost": 1}, "steps_lost", Level.FAIL),
        ({"not_applied": 1}, "not_applied", Level.FAIL),
        ({"broadcasts_failed": 2}, "broadcasts_failed", Level.FAIL),
        ({"telemetry": False}, "telemetry", Level.FAIL),
        ({"written_at": NOW - 600.0}, "alive", Level.FAIL),
        ({"written_at": NOW + 600.0}, "clock", Level.FAIL),
        ({"engine": "vllm"}, "engine", Level.FAIL),
        ({"client": {"state": "stale", "age_seconds": 900.0}}, "state", Level.WARN),
        ({"client": {"state": "fallback", "polls_failed": 9}}, "state", Level.FAIL),
        ({"client": {"state": "fallback", "polls_failed": 0}}, "state", Level.UNKNOWN),
        ({"client": {"state": "fallback", "key_mismatch": 1}}, "key", Level.FAIL),
        ({"client": {**GOOD["client"], "rows_dropped": 5}}, "rows_dropped", Level.WARN),
    ],
)
def test_a_trouble_is_named(changes: dict[str, Any], check: str, level: Level) -> None:
    assert levels(**changes)[check] is level


def test_a_plugin_that_stepped_aside_says_why_and_what_to_do() -> None:
    told = {"written_at": NOW, "engine": "vllm", "attached": False, "reason": "unknown"}
    (_, found) = status_findings({**told, "remedy": "run 0.33.0"}, engine="vllm", gamma=7, now=NOW)
    assert (found.level, found.text) == (Level.FAIL, "the plugin stepped aside: unknown")
    assert found.remedy == "run 0.33.0"
    (_, found) = status_findings(told, engine="vllm", gamma=7, now=NOW)
    assert found.remedy == "the engine's log says more, after dspark-calib"


def test_no_file_is_no_plugin(tmp_path: Path) -> None:
    """One that stepped aside would have left a file."""
    path = tmp_path / "status.json"
    for engine, variable in (("sglang", "SGLANG_PLUGINS"), ("vllm", "VLLM_PLUGINS")):
        found = absent_finding(path, engine)
        assert found.level is Level.FAIL
        assert "install dspark-calib-client" in str(found.remedy)
        assert f"{variable}, where set, must name dspark_calib" in str(found.remedy)
    (tmp_path / "status-dp1.json").touch()
    found = absent_finding(path, "vllm")
    assert found.level is Level.UNKNOWN
    assert "status-dp1.json" in found.text


def test_a_shorter_gamma_gets_a_prefix() -> None:
    assert levels(wanted=9)["gamma"] is Level.OK


@pytest.mark.parametrize(
    ("faults", "said", "remedy"),
    [
        ({"polls_failed": 9}, "never reached", "DSPARK_CALIB_URL"),
        ({"poll_failed_connect": 9}, "connect", "DSPARK_CALIB_URL"),
        ({"poll_failed_conflict": 9, "poll_failed_timeout": 1}, "conflict", "gamma"),
        ({"poll_failed_not_found": 9}, "not found", "register the drafter"),
        ({"poll_failed_wrong_etag": 9}, "wrong etag", "between changes its answers"),
    ],
)
def test_why_no_answer_was_used(faults: dict[str, int], said: str, remedy: str) -> None:
    client = {"state": "fallback", **faults}
    found = list(status_findings({**GOOD, "client": client}, engine="sglang", gamma=7, now=NOW))
    (state,) = [entry for entry in found if entry.check == "state"]
    assert said in state.text
    assert remedy in str(state.remedy)
