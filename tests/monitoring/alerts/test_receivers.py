from __future__ import annotations

from typing import Any

import pytest

from calib.errors import ConfigurationError
from monitoring.alerts.receivers import Receiver, checked_url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "pager.example.org/in",
        "ftp://pager.example.org/in",
        "file:///etc/passwd",
        "gopher://127.0.0.1:70/",
        "http:///in",
        "http://user:password@pager.example.org/in",
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/in",
        "http://pager.example.org:port/in",
        "http://pager.example.org/in\r\nX-Evil: 1",
        "http://[broken/in",
    ],
)
def test_only_plain_http_addresses_are_taken_and_none_is_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked_url(url)
    assert caught.value.field == "url"
    assert not url or url not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://alertmanager:9093", "https://hooks.example.org/services/T/B/x?y=1"]
)
def test_addresses_of_receivers_are_taken_as_they_are(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    "change",
    [{"kind": "mail"}, {"minimum_severity": "loud"}, {"timeout_seconds": 0.0}],
    ids=str,
)
def test_what_no_receiver_has_is_refused(change: dict[str, Any]) -> None:
    values: dict[str, Any] = {"name": "pager", "kind": "webhook", "url": "http://pager:1/"}
    with pytest.raises(ConfigurationError, match=next(iter(change))):
        Receiver(**values | change)


def test_secrets_are_not_in_its_representation() -> None:
    receiver = Receiver("pager", "slack", "https://hooks.example.org/T0/secret-part", "key")
    assert "secret-part" not in repr(receiver)
    assert "key" not in repr(receiver)
    assert not receiver.is_local
    assert Receiver("here", "webhook", "http://127.0.0.1:1/").is_local
