"""What a service says about one drafter while telemetry comes in, told once and in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.service_calls import ServiceCalls
from api.service_demo.teller import Teller

__all__ = ["Following", "sentence"]

_EVENTS: Final = "50"


class Following:
    """Events and drift of one drafter; only what is new is told.

    Args:
        service: calls to it.
        drafter: name of the drafter.
        teller: prints.
    """

    def __init__(self, service: ServiceCalls, drafter: str, teller: Teller) -> None:
        self._service = service
        self._path = f"/v1/drafters/{drafter}"
        self._teller = teller
        self._told: dict[int, tuple[Any, ...]] = {}
        self._alarms: dict[str, int] = {}
        self._jobs: set[str] = set()
        self._drift = self._document()
        self._before = _read_rows(self._drift)
        self.open_event: int | None = None
        self.forget()

    @property
    def rows_read(self) -> int:
        """Rows that the worker has read since this began."""
        return _read_rows(self._drift) - self._before

    @property
    def is_settled(self) -> bool:
        """Whether no recalibration that the loop ordered is still to end."""
        for job in sorted(self._jobs):
            answer = self._service.call("GET", f"/v1/jobs/{job}").json()
            if answer["status"] in ("queued", "running"):
                return False
            self._jobs.discard(job)
        return True

    def forget(self) -> None:
        """What has happened so far is not told any more."""
        self._told = {event["id"]: _state(event) for event in self._events()}

    def look(self, row: int) -> None:
        """Tell what is new, by so many rows sent."""
        self._drift = self._document()
        for event in reversed(self._events()):
            if self._told.get(event["id"]) == _state(event):
                continue
            self._told[event["id"]] = _state(event)
            self._note(event, row)
            self.tell(row, f"event {event['id']}, {event['severity']}: {sentence(event)}")

    def tell(self, row: int, text: str) -> None:
        """One line, with the row it belongs to."""
        self._teller.say(f"row {row:>7,}  {text}")

    def summary(self) -> list[str]:
        """What came of it, in sentences."""
        document = self._drift
        if not document.get("rows_total"):
            return ["The worker has read nothing: is the closed loop of this service off?"]
        pooled = document["tests"][0]
        said = [
            f"The worker has read {self.rows_read:,} rows; revision {document['revision']} is "
            f"served and its status is {document['status']}. Evidence over all traffic: 10^"
            f"{pooled['evidence_log10']:.1f}; the act level is 10^"
            f"{pooled['threshold_log10']['act']:.1f}."
        ]
        if not self._alarms:
            said.append("No alarm was raised.")
        for level, row in self._alarms.items():
            said.append(f"First alarm of the {level} level: by row {row:,}.")
        return said

    def _note(self, event: Mapping[str, Any], row: int) -> None:
        details = event["details"]
        if event["kind"] == "drift":
            self.open_event = event["id"] if event["state"] == "open" else None
            if event["state"] != "resolved":
                self._alarms.setdefault(str(details.get("level", "warn")), row)
        if event["kind"] == "recalibration_scheduled" and details.get("job"):
            self._jobs.add(str(details["job"]))

    def _events(self) -> list[dict[str, Any]]:
        parameters = {"limit": _EVENTS}
        answer = self._service.call("GET", f"{self._path}/events", parameters=parameters)
        found: list[dict[str, Any]] = answer.json()["events"]
        return found

    def _document(self) -> dict[str, Any]:
        found: dict[str, Any] = self._service.call("GET", f"{self._path}/drift").json()
        return found


def sentence(event: Mapping[str, Any]) -> str:
    """An event in words: its title, and of an alarm the evidence."""
    title, details = str(event["title"]), event["details"]
    if event["kind"] == "drift" and event["state"] == "resolved":
        return f"{title}: resolved."
    if event["kind"] == "drift" and "evidence_log10" in details:
        seen = f" Acknowledged by {event['acknowledged_by']}." if event["acknowledged_by"] else ""
        return (
            f"{title}. {details['leading'].capitalize()}; evidence 10^"
            f"{details['evidence_log10']:.1f} of 10^{details['threshold_log10']:.1f}, since "
            f"{details['rows_ago']:,} rows.{seen}"
        )
    reason = str(details.get("reason") or "").rstrip(".")
    return f"{title}: {reason}." if reason and reason not in title else f"{title}."


def _state(event: Mapping[str, Any]) -> tuple[Any, ...]:
    return event["state"], event["severity"], event["count"], event["acknowledged_by"]


def _read_rows(document: Mapping[str, Any]) -> int:
    left_out = document.get("rows_left_out") or {}
    return int(document.get("rows_total") or 0) + sum(int(count) for count in left_out.values())
