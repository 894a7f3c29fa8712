"""What the service knows of drafter and engine; clocks are compared by its own answer."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from api.doctor.findings import Level
from api.doctor.service_state import clock_finding, service_findings

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("apart", "level"), [(1.0, Level.OK), (-20.0, Level.WARN), (90.0, Level.FAIL)]
)
def test_clocks_are_compared(apart: float, level: Level) -> None:
    assert clock_finding(formatdate(NOW + apart, usegmt=True), NOW).level is level


def test_no_date_is_no_verdict() -> None:
    assert clock_finding(None, NOW).level is Level.UNKNOWN


def levels(status: Any = None, engine_id: str | None = None, **changes: Any) -> dict[str, Level]:
    key = {"slot_convention": "anchor_excluded", "confidence_source": "head", "gamma": 7}
    row = {"engine": "e0", "status": "on_champion"}
    found = {
        "date": formatdate(usegmt=True),
        "drafter": {"key": {**key, **changes.pop("key", {})}},
        "served": {"revision": 3, "status": "fitted", "publication": 5, "temperatures": []},
        "engines": {"engines": [row]},
        **changes,
    }
    attached = {"attached": True, "publication": 5, "source": "head", "applies": True}
    status = attached if status is None else {**attached, **status}
    return {entry.check: entry.level for entry in service_findings(found, status, engine_id)}


def test_a_healthy_fleet() -> None:
    assert set(levels().values()) == {Level.OK}


def test_troubles_are_named() -> None:
    assert levels({"publication": 4})["applied"] is Level.WARN
    assert levels({"source": "max_log_odds"})["confidence_source"] is Level.FAIL
    assert levels(key={"slot_convention": "anchor_included"})["slots"] is Level.FAIL
    assert levels(engine_id="e9")["polls"] is Level.FAIL
    assert levels(engines={"engines": []})["polls"] is Level.FAIL
    silent = {"engines": [{"engine": "e0", "status": "silent"}]}
    assert levels(engines=silent)["polls"] is Level.WARN
    assert "polls" not in levels(engines=None)  # not allowed to see them
    identity = {"revision": 0, "status": "identity", "publication": 5, "temperatures": []}
    assert levels(served=identity)["served"] is Level.WARN


def test_slopes_alone_are_told_apart_from_temperatures() -> None:
    served = {"revision": 4, "status": "partial", "publication": 5, "temperatures": [1.0, 1.0]}

    def said(**numbers: Any) -> str:
        found = {
            "date": formatdate(usegmt=True),
            "drafter": {"key": {"slot_convention": "anchor_excluded"}},
            "served": {**served, **numbers},
            "engines": None,
        }
        (entry,) = (e for e in service_findings(found, None, None) if e.check == "served")
        assert entry.level is Level.OK
        return entry.text

    affine = {"slopes": [0.9, 1.0], "intercepts": [-0.5, 0.0]}
    assert "slopes and intercepts alone" in said(affine=affine)
    assert "alone" not in said(affine=affine, temperatures=[1.2, 1.0])
    assert "alone" not in said(affine=None)
