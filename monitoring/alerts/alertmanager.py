"""Alertmanager's API v2: ``POST /api/v2/alerts``.

An Alertmanager forgets an alert when its end is over, so a firing one ends a few minutes ahead and
is posted again and again while it holds. Labels say which alert it is and are few: the same cause
has the same labels from its beginning to its end. What changes stands in annotations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from calib.canonical_json import canonical_json
from monitoring.alerts.messages import AlertMessage
from monitoring.alerts.receivers import Receiver
from monitoring.alerts.transport import AlertRequest
from monitoring.published_document import iso_time
from monitoring.store.events import SEVERITIES

__all__ = ["ALERTS_PATH", "alertmanager_alerts", "alertmanager_request"]

ALERTS_PATH: Final = "/api/v2/alerts"


def alertmanager_request(
    receiver: Receiver, messages: Sequence[AlertMessage], *, now: float, holds_seconds: float
) -> AlertRequest:
    """The request that posts these messages.

    Args:
        receiver: of kind ``alertmanager``; its address is the server's, with or without the path.
        messages: what to say.
        now: seconds since the epoch.
        holds_seconds: how long a firing alert holds if it is not posted again.
    """
    alerts = [
        alert
        for message in messages
        for alert in alertmanager_alerts(message, now=now, holds_seconds=holds_seconds)
    ]
    headers = {} if receiver.secret is None else {"authorization": f"Bearer {receiver.secret}"}
    return AlertRequest(_address(receiver.url), headers, canonical_json(alerts))


def alertmanager_alerts(
    message: AlertMessage, *, now: float, holds_seconds: float
) -> list[dict[str, Any]]:
    """The alerts of one message: itself, and after a change for the worse the end of the milder.

    A plain notice fires for ``holds_seconds`` and ends by itself.
    """
    ends_at = now + holds_seconds if message.resolved_at is None else message.resolved_at
    found = [_alert(message, message.severity, max(message.opened_at, ends_at))]
    if message.notice == "escalated":
        milder = SEVERITIES[: SEVERITIES.index(message.severity)]
        found += [_alert(message, severity, max(message.opened_at, now)) for severity in milder]
    return found


def _alert(message: AlertMessage, severity: str, ends_at: float) -> dict[str, Any]:
    labels = {
        "alertname": "DsparkCalib" + "".join(part.title() for part in message.kind.split("_")),
        "kind": message.kind,
        "severity": severity,
        "service": "dspark-calib",
    }
    if message.drafter is not None:
        labels["drafter"] = message.drafter
    if message.cause is not None:
        labels["cause"] = message.cause
    annotations = {
        "summary": message.headline,
        "description": message.text,
        "where": message.where,
        "evidence": message.evidence,
        "since": message.since,
        "cost": message.cost,
        "command": message.command,
    }
    return {
        "labels": labels,
        "annotations": {name: value for name, value in annotations.items() if value is not None},
        "startsAt": iso_time(message.opened_at),
        "endsAt": iso_time(ends_at),
        "generatorURL": message.page,
    }


def _address(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    return urlunsplit(
        parts._replace(path=path if path.endswith(ALERTS_PATH) else path + ALERTS_PATH)
    )
