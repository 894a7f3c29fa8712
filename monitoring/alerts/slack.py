"""Slack's incoming webhooks: blocks for Slack, the same as text for what only speaks its dialect.

Limits of the format: a header of 150 characters, ten fields of 2,000 in a section.
"""

from __future__ import annotations

from typing import Any, Final

from calib.canonical_json import canonical_json
from monitoring.alerts.messages import AlertMessage
from monitoring.alerts.receivers import Receiver
from monitoring.alerts.transport import AlertRequest

__all__ = ["slack_request"]

_LONGEST_HEADER: Final = 150
_LONGEST_FIELD: Final = 1000
_SIGNS: Final = {"critical": "[critical]", "warning": "[warning]", "info": "[info]"}


def slack_request(receiver: Receiver, message: AlertMessage) -> AlertRequest:
    """The request to an incoming webhook, whose address is its secret."""
    sign = "[resolved]" if message.status == "resolved" else _SIGNS[message.severity]
    heading = f"{sign} {message.title}"
    fields = [_mrkdwn(f"*{name}*\n{_escaped(value)}") for name, value in message.facts]
    blocks: list[dict[str, Any]] = [
        {
            "type": "header",
            "text": {"type": "plain_text", "text": heading[:_LONGEST_HEADER], "emoji": False},
        },
        {"type": "section", "fields": fields},
    ]
    if message.command is not None and message.status != "resolved":
        blocks.append({"type": "section", "text": _mrkdwn(f"`{_escaped(message.command)}`")})
    link = f"<{_escaped(message.page)}|Open the dashboard>"
    blocks.append({"type": "context", "elements": [_mrkdwn(link)]})
    text = f"{sign} {message.text}"
    return AlertRequest(
        receiver.url, {}, canonical_json({"text": _escaped(text), "blocks": blocks})
    )


def _mrkdwn(text: str) -> dict[str, str]:
    return {"type": "mrkdwn", "text": text[:_LONGEST_FIELD]}


def _escaped(text: str) -> str:
    # The three characters that Slack reads as its own; so no value can mention a channel.
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
