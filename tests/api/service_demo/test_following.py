from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from api.service_demo.following import Following, sentence
from api.service_demo.teller import Teller

DRIFT = {
    "id": 4,
    "kind": "drift",
    "severity": "critical",
    "state": "open",
    "count": 1,
    "acknowledged_by": None,
    "title": "Calibration has drifted on d",
    "details": {
        "level": "act",
        "leading": "shift -0.5 at position 1",
        "evidence_log10": 6.31,
        "threshold_log10": 6.12,
        "rows_ago": 1200,
    },
}
TEST = {"evidence_log10": 6.3, "threshold_log10": {"act": 6.1}}


class Answers:
    """Answers of a service by path."""

    def __init__(self) -> None:
        self.drift: dict[str, Any] = {"rows_total": 0, "rows_left_out": {}}
        self.events: list[dict[str, Any]] = []
        self.job = "running"

    def call(self, method: str, path: str, **_: Any) -> Any:
        found: Any = {"status": self.job}
        if path.endswith("/drift"):
            found = self.drift
        elif path.endswith("/events"):
            found = {"events": self.events}
        return type("Answer", (), {"json": lambda self: found})()


def test_each_event_is_told_once_and_again_when_it_changes() -> None:
    text, service = StringIO(), Answers()
    service.events = [DRIFT | {"id": 1}, DRIFT | {"id": 0, "details": {"level": "warn"}}]
    following = Following(service, "d", Teller(Console(file=text, width=200)))  # type: ignore[arg-type]
    service.events[1] |= {"state": "resolved"}  # of the baseline before
    service.events = [DRIFT, *service.events]
    following.look(500)
    following.look(600)
    assert text.getvalue().count("critical: Calibration has drifted on d. Shift") == 1
    assert text.getvalue().count("resolved") == 1
    assert following.open_event == 4
    service.events = [DRIFT | {"state": "acknowledged", "acknowledged_by": "anna"}]
    following.look(700)
    assert "Acknowledged by anna" in text.getvalue()
    assert following.open_event is None
    service.drift = {
        "rows_total": 690,
        "rows_left_out": {"held": 10},
        "revision": 1,
        "status": "drift",
        "tests": [TEST],
    }
    following.look(700)
    assert following.rows_read == 700
    assert following.summary()[1:] == ["First alarm of the act level: by row 500."]


def test_an_ordered_fit_is_waited_for() -> None:
    service = Answers()
    following = Following(service, "d", Teller(Console(file=StringIO())))  # type: ignore[arg-type]
    assert following.is_settled
    ordered = {"kind": "recalibration_scheduled", "details": {"job": "7"}, "title": "Ordered"}
    service.events = [DRIFT | ordered]
    following.look(1)
    assert not following.is_settled
    service.job = "succeeded"
    assert following.is_settled
    assert following.summary() == [
        "The worker has read nothing: is the closed loop of this service off?"
    ]


def test_events_in_words() -> None:
    assert sentence(DRIFT) == (
        "Calibration has drifted on d. Shift -0.5 at position 1; evidence 10^6.3 of 10^6.1, "
        "since 1,200 rows."
    )
    assert sentence(DRIFT | {"state": "resolved"}) == "Calibration has drifted on d: resolved."
    notice = {
        "kind": "promoted",
        "title": "Revision 2 is promoted",
        "details": {"reason": "better"},
    }
    assert sentence(DRIFT | notice) == "Revision 2 is promoted: better."
