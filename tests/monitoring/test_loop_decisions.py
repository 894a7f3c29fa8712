"""Decisions as plain values."""

from __future__ import annotations

from monitoring.loop_decisions import Resolve, RollBack, ScheduleFit, decision_dict


def test_kinds_are_spelled_as_events_are() -> None:
    assert decision_dict(Resolve("drift", "why"))["kind"] == "resolve"
    assert decision_dict(RollBack(2, 1, "why", {}))["kind"] == "roll_back"
    fit = decision_dict(ScheduleFit("act alarm", "act", 3, 9, 1200))
    assert fit == {
        "kind": "schedule_fit",
        "reason": "act alarm",
        "cause": "act",
        "window_from": 3,
        "through": 9,
        "rows": 1200,
        "segmented": False,
    }
