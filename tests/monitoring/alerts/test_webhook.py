"""Signatures as the Standard Webhooks specification has them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest

from monitoring.alerts.receivers import Receiver
from monitoring.alerts.webhook import webhook_body, webhook_request, webhook_signature
from tests.monitoring.alerts.alert_messages import NOW, message

URL = "http://pager:1/in"
RAW = b"24 bytes of a shared key"


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("a text", b"a text"),
        ("whsec_" + base64.b64encode(RAW).decode(), RAW),
        ("whsec_no base64", b"whsec_no base64"),
    ],
)
def test_the_signature_is_the_hmac_of_id_time_and_body(secret: str, key: bytes) -> None:
    found = webhook_signature(secret, "msg-1", 1_700_000_000, b'{"a":1}')
    digest = hmac.new(key, b'msg-1.1700000000.{"a":1}', hashlib.sha256).digest()
    assert found == "v1," + base64.b64encode(digest).decode()


def test_every_attempt_has_the_same_body_and_its_own_time() -> None:
    receiver = Receiver("pager", "webhook", URL, "key")
    first = webhook_request(receiver, message(), delivery="d-1", now=NOW)
    again = webhook_request(receiver, message(), delivery="d-1", now=NOW + 60)
    assert first.body == again.body
    assert first.headers["webhook-id"] == again.headers["webhook-id"] == "d-1"
    assert int(again.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"]) == 60
    assert first.headers["webhook-signature"] != again.headers["webhook-signature"]


def test_without_a_secret_it_is_not_signed() -> None:
    request = webhook_request(Receiver("pager", "webhook", URL), message(), delivery="d", now=NOW)
    assert "webhook-signature" not in request.headers
    assert "webhook-id" in request.headers


def test_the_body_is_plain_json_for_programs() -> None:
    said = json.loads(webhook_body(message("resolved", resolved_at=NOW), delivery="d-1"))
    assert said["format"] == "dspark-calib/alert/1"
    assert (said["notice"], said["status"]) == ("resolved", "resolved")
    assert said["resolved_at"] == "2026-11-30T00:00:00.000Z"
    assert said["details"]["position"] == 3
