"""Generic webhooks: one JSON object, signed as the Standard Webhooks specification says.

::

    webhook-id: 7d1c…                     the same for every attempt: receivers drop repeats by it
    webhook-timestamp: 1764460800         seconds since the epoch of this attempt
    webhook-signature: v1,<base64>        HMAC-SHA256 of "{id}.{timestamp}.{body}"

The key is the secret's text in UTF-8, or what follows ``whsec_`` decoded from base64. Receivers
should compare in constant time and refuse timestamps more than five minutes away.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Any, Final

from calib.canonical_json import canonical_json
from monitoring.alerts.messages import AlertMessage
from monitoring.alerts.receivers import Receiver
from monitoring.alerts.transport import AlertRequest
from monitoring.published_document import iso_time

__all__ = ["FORMAT", "webhook_body", "webhook_request", "webhook_signature"]

FORMAT: Final = "dspark-calib/alert/1"
_PREFIX: Final = "whsec_"


def webhook_request(
    receiver: Receiver, message: AlertMessage, *, delivery: str, now: float
) -> AlertRequest:
    """The signed request; unsigned where the receiver has no secret.

    Args:
        receiver: of kind ``webhook``.
        message: what to say.
        delivery: id that stays the same over attempts.
        now: seconds since the epoch.
    """
    body = webhook_body(message, delivery=delivery)
    headers = {"webhook-id": delivery, "webhook-timestamp": str(int(now))}
    if receiver.secret is not None:
        signature = webhook_signature(receiver.secret, delivery, int(now), body)
        headers["webhook-signature"] = signature
    return AlertRequest(receiver.url, headers, body)


def webhook_body(message: AlertMessage, *, delivery: str) -> bytes:
    """Canonical JSON of the message: the same bytes for every attempt."""
    resolved = None if message.resolved_at is None else iso_time(message.resolved_at)
    said: dict[str, Any] = {
        "format": FORMAT,
        "delivery": delivery,
        "notice": message.notice,
        "status": message.status,
        "event": message.event,
        "kind": message.kind,
        "severity": message.severity,
        "title": message.title,
        "drafter": message.drafter,
        "cause": message.cause,
        "where": message.where,
        "evidence": message.evidence,
        "since": message.since,
        "opened_at": iso_time(message.opened_at),
        "resolved_at": resolved,
        "cost": message.cost,
        "command": message.command,
        "page": message.page,
        "text": message.text,
        "details": dict(message.details),
    }
    return canonical_json(said)


def webhook_signature(secret: str, delivery: str, timestamp: int, body: bytes) -> str:
    """``v1,`` and the base64 of the HMAC-SHA256 of id, timestamp and body."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    digest = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def _key(secret: str) -> bytes:
    if secret.startswith(_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass  # a text that merely begins like one
    return secret.encode()
