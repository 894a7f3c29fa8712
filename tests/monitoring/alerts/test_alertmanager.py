"""Alerts in the form of Alertmanager's API v2, and taken by a real one."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from monitoring.alerts.alertmanager import alertmanager_alerts, alertmanager_request
from monitoring.alerts.receivers import Receiver
from tests.monitoring.alerts.alert_messages import NOW, message

BINARY = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
START_SECONDS = 60.0


def check_postable(alerts: Any) -> None:
    """``postableAlerts`` of the API's description: what members there are, of which types."""
    assert isinstance(alerts, list)
    for alert in alerts:
        assert set(alert) <= {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}
        assert alert["labels"]  # the only member that is required, and the server wants one
        for name, value in alert["labels"].items():
            assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
            assert isinstance(value, str)
            assert value
        assert all(isinstance(text, str) for text in alert["annotations"].values())
        starts, ends = (datetime.fromisoformat(alert[key]) for key in ("startsAt", "endsAt"))
        assert starts.tzinfo is not None
        assert ends >= starts
        assert httpx.URL(alert["generatorURL"]).is_absolute_url


def alerts(notice: Any = "opened", **changes: Any) -> list[dict[str, Any]]:
    found = alertmanager_alerts(message(notice, **changes), now=NOW, holds_seconds=300.0)
    check_postable(found)
    return found


def test_a_firing_alert_names_its_cause_and_ends_ahead() -> None:
    (alert,) = alerts()
    assert alert["labels"] == {
        "alertname": "DsparkCalibDrift",
        "cause": "drift/code",
        "drafter": "code",
        "kind": "drift",
        "service": "dspark-calib",
        "severity": "critical",
    }
    assert alert["startsAt"] == "2026-11-29T23:50:00.000Z"
    assert alert["endsAt"] == "2026-11-30T00:05:00.000Z"
    assert alert["annotations"]["command"] == "dspark-calib drift code"
    assert alert["generatorURL"] == "https://calib.example.org/drafters/code"


def test_labels_stay_the_same_while_details_change() -> None:
    (first,) = alerts()
    (last,) = alerts("resolved", resolved_at=NOW, details={"position": 5})
    assert first["labels"] == last["labels"]
    assert last["endsAt"] == "2026-11-30T00:00:00.000Z"


def test_a_change_for_the_worse_ends_the_milder_alerts() -> None:
    found = alerts("escalated")
    assert [(one["labels"]["severity"], one["endsAt"]) for one in found] == [
        ("critical", "2026-11-30T00:05:00.000Z"),
        ("info", "2026-11-30T00:00:00.000Z"),
        ("warning", "2026-11-30T00:00:00.000Z"),
    ]


def test_clocks_that_disagree_make_no_alert_that_ends_before_it_starts() -> None:
    (alert,) = alerts("resolved", opened_at=NOW + 50.0, resolved_at=NOW)
    assert alert["endsAt"] == alert["startsAt"]


@pytest.mark.parametrize(
    "url", ["http://am:9093", "http://am:9093/", "http://am:9093/api/v2/alerts"]
)
def test_the_address_is_that_of_the_server(url: str) -> None:
    receiver = Receiver("am", "alertmanager", url, "token")
    request = alertmanager_request(receiver, [message()], now=NOW, holds_seconds=300.0)
    assert request.url == "http://am:9093/api/v2/alerts"
    assert request.headers == {"authorization": "Bearer token"}
    check_postable(json.loads(request.body))


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    """A real Alertmanager on a free port; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    process = subprocess.Popen(
        [
            str(BINARY),
            f"--config.file={config}",
            f"--storage.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url)
        yield url
    finally:
        process.terminate()
        process.wait(20.0)


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the Alertmanager is not ready")


@pytest.mark.slow
@pytest.mark.skipif(BINARY is None, reason="prometheus-alertmanager is not installed")
def test_a_real_alertmanager_takes_them_from_beginning_to_end(alertmanager: str) -> None:
    receiver = Receiver("am", "alertmanager", alertmanager)
    now = time.time()

    def post(*messages: Any) -> None:
        request = alertmanager_request(receiver, messages, now=time.time(), holds_seconds=300.0)
        answer = httpx.post(
            request.url, content=request.body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200, answer.text

    def active() -> list[tuple[str, str]]:
        found = httpx.get(f"{alertmanager}/api/v2/alerts", params={"active": "true"}).json()
        return sorted((one["labels"]["drafter"], one["labels"]["severity"]) for one in found)

    post(
        message(severity="warning", opened_at=now),
        message(drafter="chat", dedup_key="drift/chat", opened_at=now),
    )
    assert active() == [("chat", "critical"), ("code", "warning")]
    post(message("escalated", opened_at=now))
    assert active() == [("chat", "critical"), ("code", "critical")]
    post(message("escalated", opened_at=now))  # posted again while it holds
    assert active() == [("chat", "critical"), ("code", "critical")]
    post(message("resolved", opened_at=now, resolved_at=time.time()))
    assert active() == [("chat", "critical")]
