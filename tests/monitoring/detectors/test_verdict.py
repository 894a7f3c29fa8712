"""Verdicts explain themselves, are plain JSON and never change."""

from __future__ import annotations

import dataclasses
import json

import pytest

from calib.errors import FormatError
from monitoring.detectors.verdict import Alarm, ChangePoint, Verdict, VerdictStatus

ALARM = Alarm(127, ChangePoint(64, 32, 64), "slope 0.6 at all positions", 14.25)


def verdict(status: VerdictStatus, alarm: Alarm | None = None, evidence: float = 2.0) -> Verdict:
    return Verdict("act", status, 200, evidence, 13.8, "slope 0.6", alarm, alarm is not None)


def test_alarm_survives_json() -> None:
    assert Alarm.from_dict(json.loads(json.dumps(ALARM.to_dict()))) == ALARM
    with pytest.raises(FormatError, match="alarm"):
        Alarm.from_dict({"row": 1})


def test_reasons_name_rows_and_change_point() -> None:
    assert verdict(VerdictStatus.ALARM, ALARM).reason == (
        "act: alarm at row 127, change near row 64 (slope 0.6 at all positions)"
    )
    assert "too few" in verdict(VerdictStatus.INSUFFICIENT).reason
    assert "quiet after 200 rows, 14 %" in verdict(VerdictStatus.QUIET).reason
    assert "0 %" in verdict(VerdictStatus.QUIET, evidence=-3.0).reason


def test_json_is_finite_and_the_verdict_immutable() -> None:
    extreme = verdict(VerdictStatus.ALARM, ALARM, evidence=1e6)
    assert extreme.evidence == pytest.approx(1.0142e304, rel=1e-3)
    assert json.loads(json.dumps(extreme.to_dict(), allow_nan=False))["status"] == "alarm"
    with pytest.raises(dataclasses.FrozenInstanceError):
        extreme.rows = 3  # type: ignore[misc]
