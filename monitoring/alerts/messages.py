"""What a receiver is told: who, where, how sure, since when, what it costs and what helps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

from calib.segment_tags import segment_name
from monitoring.published_document import iso_time
from monitoring.store.alert_outbox import Notice

__all__ = ["AlertMessage", "alert_message", "test_message"]

AlertStatus = Literal["firing", "resolved", "notice"]

_STATUS: Final[Mapping[str, AlertStatus]] = {
    "opened": "firing",
    "escalated": "firing",
    "resolved": "resolved",
    "noticed": "notice",
}
# What to look at first; everything else begins with the drift document.
_COMMANDS: Final[Mapping[str, str]] = {
    "promoted": "dspark-calib rollback {drafter}",
    "publication": "dspark-calib rollback {drafter}",
}
_COMMAND: Final = "dspark-calib drift {drafter}"
_LONGEST: Final = 500
_LAST_SECOND: Final = 253_402_300_800.0  # the year 10,000, beyond which no calendar goes


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """One message, for every kind of receiver.

    Attributes:
        notice: ``opened``, ``escalated``, ``resolved`` or ``noticed``.
        status: ``firing``, ``resolved`` or ``notice``.
        event: id of the event.
        kind: kind of event.
        severity: ``info``, ``warning`` or ``critical``.
        title: one line.
        drafter: whom it is about, or None.
        cause: the event's key: the same while the same cause holds; None for a plain notice.
        where: position or segment in words, or None.
        evidence: how sure that is, in words, or None.
        opened_at: seconds since the epoch.
        since: ISO 8601 UTC: the estimated change, else when the event was opened.
        resolved_at: seconds since the epoch, or None.
        cost: lost throughput in words, or None where it is not known.
        command: what to run, or None.
        page: address to open.
        details: the event's own, as plain JSON.
    """

    notice: Notice
    status: AlertStatus
    event: int
    kind: str
    severity: str
    title: str
    drafter: str | None
    cause: str | None
    where: str | None
    evidence: str | None
    opened_at: float
    since: str
    resolved_at: float | None
    cost: str | None
    command: str | None
    page: str
    details: Mapping[str, Any]

    @property
    def headline(self) -> str:
        """Title with what has become of it."""
        words = {"escalated": "Worse: ", "resolved": "Resolved: "}
        return words.get(self.notice, "") + self.title

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Name and value of everything that is known, in the order in which people ask."""
        named = (
            ("Drafter", self.drafter),
            ("Where", self.where),
            ("Evidence", self.evidence),
            ("Since", self.since),
            ("Until", None if self.resolved_at is None else iso_time(self.resolved_at)),
            ("Cost", self.cost),
            ("Severity", self.severity),
        )
        return [(name, value) for name, value in named if value is not None]

    @property
    def text(self) -> str:
        """Everything as plain lines."""
        lines = [self.headline, *(f"{name}: {value}" for name, value in self.facts)]
        if self.command is not None and self.status != "resolved":
            lines.append(f"Run: {self.command}")
        return "\n".join([*lines, f"See: {self.page}"])


def alert_message(notice: Notice, message: Mapping[str, Any], *, base_url: str) -> AlertMessage:
    """The message of a notice.

    Args:
        notice: kind of notice.
        message: the event as the outbox keeps it.
        base_url: address of the service, for links.
    """
    drafter, kind, details = message["drafter"], message["kind"], message["details"]
    command = None
    if drafter is not None:
        command = _COMMANDS.get(kind, _COMMAND).format(drafter=drafter)
    opened_at = float(message["opened_at"])
    resolved_at = message["resolved_at"] if notice == "resolved" else None
    return AlertMessage(
        notice=notice,
        status=_STATUS[notice],
        event=message["event"],
        kind=kind,
        severity=message["severity"],
        title=str(message["title"])[:_LONGEST],
        drafter=drafter,
        cause=message.get("dedup_key"),
        where=_where(details),
        evidence=_evidence(details),
        opened_at=opened_at,
        since=_since(details) or iso_time(opened_at),
        resolved_at=resolved_at,
        cost=_cost(details),
        command=command,
        page=_page(base_url, drafter),
        details=details,
    )


def test_message(*, base_url: str, now: float) -> AlertMessage:
    """What a test-fire sends: everything a real message has, and says that it is none."""
    message = {
        "event": 0,
        "drafter": "example-drafter",
        "kind": "test",
        "severity": "info",
        "title": "Test of dspark-calib: this receiver works, nothing is wrong",
        "dedup_key": "test",
        "details": {
            "position": 3,
            "evidence_log10": 6.2,
            "threshold_log10": 6.0,
            "mean_residual": -0.04,
            "theta_loss": 0.012,
        },
        "opened_at": now,
        "resolved_at": None,
        "count": 1,
    }
    return alert_message("opened", message, base_url=base_url)


test_message.__test__ = False  # type: ignore[attr-defined]  # no test, whatever its name


def _page(base_url: str, drafter: str | None) -> str:
    base = base_url.rstrip("/")
    return f"{base}/" if drafter is None else f"{base}/drafters/{quote(drafter, safe='')}"


def _where(details: Mapping[str, Any]) -> str | None:
    position, segment, monitor = (details.get(key) for key in ("position", "segment", "monitor"))
    parts = []
    if isinstance(position, int) and not isinstance(position, bool):
        parts.append(f"position {position}")
    if isinstance(segment, Mapping) and segment:
        parts.append(f"segment {segment_name(segment)}")
    elif isinstance(segment, str) and segment:
        parts.append(f"segment {segment}")
    if isinstance(monitor, str) and monitor:
        parts.append(f"monitor {monitor}")
    return " of ".join(parts)[:_LONGEST] or None


def _evidence(details: Mapping[str, Any]) -> str | None:
    parts = []
    log10 = _number(details.get("evidence_log10"))
    plain = _number(details.get("evidence"))
    if log10 is None and plain is not None and plain > 0:
        log10 = math.log10(plain)
    if log10 is not None:
        threshold = _number(details.get("threshold_log10"))
        limit = "" if threshold is None else f", alarm at 10^{threshold:.3g}"
        parts.append(f"e-value 10^{log10:.3g} against calibration{limit}")
    residual = _number(details.get("mean_residual"))
    if residual is not None:
        side = "overconfident" if residual < 0 else "underconfident"
        parts.append(f"{side} by {100 * abs(residual):.1f} points")
    elif isinstance(details.get("leading"), str):
        parts.append(f"leading alternative: {details['leading']}")
    if not parts and isinstance(details.get("reason"), str):
        parts.append(str(details["reason"]))
    return "; ".join(parts)[:_LONGEST] or None


def _since(details: Mapping[str, Any]) -> str | None:
    change = details.get("change_point")
    estimated = change.get("since") if isinstance(change, Mapping) else None
    for candidate in (details.get("since"), estimated):
        if isinstance(candidate, str) and candidate:
            return candidate[:64]
        seconds = _number(candidate)
        if seconds is not None and 0 <= seconds < _LAST_SECOND:
            return iso_time(seconds)
    return None


def _cost(details: Mapping[str, Any]) -> str | None:
    share = _number(details.get("theta_loss"))
    return None if share is None else f"about {100 * share:.2g} % of throughput"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
