"""Blocks within the limits of the format, and no value that Slack takes for its own marks."""

from __future__ import annotations

import json
from typing import Any

from monitoring.alerts.receivers import Receiver
from monitoring.alerts.slack import slack_request
from tests.monitoring.alerts.alert_messages import NOW, message

RECEIVER = Receiver("chat", "slack", "https://hooks.example.org/T/B/x")


def said(notice: Any = "opened", **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(slack_request(RECEIVER, message(notice, **changes)).body)
    return found


def test_blocks_say_the_same_as_the_text() -> None:
    found = said()
    header, facts, command, link = found["blocks"]
    assert header["text"]["text"] == "[critical] code drifts"
    assert [one["text"].split("\n")[0] for one in facts["fields"]] == [
        "*Drafter*",
        "*Where*",
        "*Evidence*",
        "*Since*",
        "*Cost*",
        "*Severity*",
    ]
    assert command["text"]["text"] == "`dspark-calib drift code`"
    assert link["elements"][0]["text"] == (
        "<https://calib.example.org/drafters/code|Open the dashboard>"
    )
    for value in ("position 3", "10^7.25", "2026-11-29T23:40:00Z", "1.8 %", "drift code"):
        assert value in found["text"]


def test_limits_of_the_format_hold() -> None:
    found = said(title="x" * 5000, details={"reason": "y" * 5000, "segment": "z" * 5000})
    header, facts, *_ = found["blocks"]
    assert len(header["text"]["text"]) <= 150
    assert len(facts["fields"]) <= 10
    assert all(len(one["text"]) <= 2000 for one in facts["fields"])


def test_no_value_calls_the_whole_channel() -> None:
    text = json.dumps(said(title="<!channel> & <@U1>", details={"reason": "<!here>"}))
    for mark in ("<!channel>", "<@U1>", "<!here>"):
        assert mark not in text.replace("[critical] <!channel> & <@U1>", "")  # plain_text header
    assert "&lt;!here&gt;" in text


def test_the_end_is_marked_and_needs_no_command() -> None:
    found = said("resolved", resolved_at=NOW)
    assert found["blocks"][0]["text"]["text"] == "[resolved] code drifts"
    assert len(found["blocks"]) == 3
