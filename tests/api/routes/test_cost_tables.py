from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from calib.formats.arrow import ipc_from_records
from calib.records import AcceptanceRecords
from monitoring.alerts.messages import alert_message
from monitoring.store.audit import list_audit
from tests.api.served import Served
from tests.monitoring.loop_rows import rows
from tests.support.service import KEY, Service

PATH = "/v1/drafters/drafter/cost-table"
STAIRCASE = {
    "draft_curve": [[1, 1.0]],
    "verify_curve": [[8, 10.0], [64, 12.0]],
    "cudagraph_limit": 64,
}
FLAT = {
    "sample_batch_tokens": [1, 64],
    "sample_steps_per_sec": [90.0, 70.5],
    "max_batch_tokens": 128,
}
ADDITIVE = {
    "bias_seconds": 0.01,
    "bs_probes": [1, 8],
    "alpha_seconds": [0.0, 0.001],
    "m_probes": [1, 64],
    "theta_seconds": [0.0, 0.002],
}
MEASURED = {"batch_tokens": [1, 64], "step_seconds": [0.011, 0.014]}


@pytest.fixture(autouse=True)
def registered(service: Service) -> None:
    service.register()


@pytest.mark.parametrize(
    ("kind", "table"),
    [("flat", FLAT), ("additive", ADDITIVE), ("staircase", STAIRCASE), ("measured", MEASURED)],
)
def test_every_kind_of_table_is_kept(service: Service, kind: str, table: dict[str, Any]) -> None:
    before = service.etag()
    answer = service.client.put(PATH, json=table)
    assert answer.status_code == 200
    assert (answer.json()["kind"], answer.json()["table"]) == (kind, table)
    assert service.client.get(PATH).json() == answer.json()
    assert service.etag() != before
    with service.database.read() as connection:
        assert list_audit(connection)[0].action == "put_cost_table"


def test_if_match_is_optional_and_holds_when_sent(service: Service) -> None:
    old = service.etag()
    assert service.client.put(PATH, json=FLAT, headers={"If-Match": old}).status_code == 200
    answer = service.client.put(PATH, json=MEASURED, headers={"If-Match": old})
    assert answer.status_code == 412
    assert service.client.get(PATH).json()["kind"] == "flat"


@pytest.mark.slow
@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011]}',
        b'{"batch_tokens": [64, 1], "step_seconds": [0.011, 0.014]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, NaN]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, 1e400]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, -1]}',
        b'{"batch_tokens": [1, 64], "step_seconds": [0.011, "0.014"]}',
        b'{"batch_tokens": [true, 64], "step_seconds": [0.011, 0.014]}',
        b'{"bias_seconds": 0.1}',
        b"[]",
        b"3",
    ],
)
def test_a_table_that_is_none_is_422(service: Service, raw: bytes) -> None:
    answer = service.client.put(PATH, content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert service.client.get(PATH).status_code == 404


def test_without_a_table_the_answer_says_how_to_send_one(service: Service) -> None:
    answer = service.client.get(PATH)
    assert answer.json()["type"] == "/problems/cost-table-not-found"
    assert f"PUT {PATH}" in answer.json()["detail"]


def test_an_unknown_drafter_is_404(service: Service) -> None:
    path = "/v1/drafters/nobody/cost-table"
    assert service.client.get(path).json()["type"] == "/problems/drafter-not-found"
    assert service.client.put(path, json=FLAT).json()["type"] == "/problems/drafter-not-found"


@pytest.mark.slow
def test_a_stored_cost_table_says_what_drift_costs_and_a_promotion_is_worth(
    tmp_path: Path,
) -> None:
    """From the table through the loop to the event, the page and the words of an alert."""
    with Served("--data", "data", folder=tmp_path, closed_loop="on") as served:
        served.listening()
        place = f"{served.url}/v1/drafters/d"
        served.http.put(place, json={"key": {**KEY, "gamma": 7}}).raise_for_status()
        served.http.put(f"{place}/cost-table", json=KNEE).raise_for_status()
        send(served, rows(1, 4096, scale=1.8))
        events_until(served, "challenger")
        for part in range(4, 8):
            send(served, rows(part, 1024, scale=1.8, first_step=1024 * part))
        found = events_until(served, "promoted")
        page = served.http.get(f"{served.url}/drafters/d").text
    drift, promoted = found["drift"]["details"], found["promoted"]["details"]
    assert 0.002 < drift["theta_loss"] < 0.03  # T × 1.8 at 64 requests on this curve
    worth = promoted["evidence"]["throughput"]
    assert worth["gain_low"] < worth["gain"] < worth["gain_high"]
    assert worth["verdict"] == "gains"
    assert f"throughput gains: {worth['gain']:+.2%}" in promoted["reason"]
    assert "throughput gains" in page
    assert "% of throughput" in page
    event = found["drift"]
    told = {**event, "event": event["id"], "opened_at": 0.0, "resolved_at": None}
    message = alert_message("opened", told, base_url=served.url)
    assert message.cost == f"about {100 * drift['theta_loss']:.2g} % of throughput"


KNEE = {
    "batch_tokens": [64, 128, 192, 256, 384, 512],
    "step_seconds": [0.02, 0.021, 0.0225, 0.025, 0.033, 0.043],
}


def send(served: Served, records: AcceptanceRecords) -> None:
    served.http.post(
        f"{served.url}/v1/drafters/d/telemetry",
        content=ipc_from_records(records),
        headers={"Content-Type": "application/vnd.apache.arrow.stream"},
    ).raise_for_status()


def events_until(served: Served, kind: str) -> dict[str, Any]:
    """Events by kind, once there is one of this kind."""
    for _ in range(480):
        events = served.http.get(f"{served.url}/v1/events").json()["events"]
        found = {event["kind"]: event for event in events}
        if kind in found:
            return found
        threading.Event().wait(0.25)
    raise AssertionError(f"no {kind}: {found}\n{served.log}")
