from __future__ import annotations

from typing import Any

import pytest

from monitoring.store.audit import list_audit
from monitoring.store.events import open_event
from tests.support.service import Service

PATH = "/v1/events"


def raise_event(service: Service, key: str, **more: Any) -> int:
    with service.database.write() as connection:
        return open_event(
            connection, "silence", "warning", f"no telemetry: {key}", dedup_key=key, **more
        ).id


def test_events_are_listed_newest_first_by_pages(service: Service) -> None:
    ids = [raise_event(service, f"key-{number}") for number in range(5)]
    first = service.client.get(PATH, params={"limit": 3}).json()
    assert [event["id"] for event in first["events"]] == ids[:1:-1]
    rest = service.client.get(PATH, params={"limit": 3, "before": first["next_before"]}).json()
    assert [event["id"] for event in rest["events"]] == ids[1::-1]
    assert rest["next_before"] is None


def test_events_are_found_by_drafter_and_state(service: Service) -> None:
    service.register("a")
    mine = raise_event(service, "x", drafter="a", details={"rows": 3})
    raise_event(service, "y")
    found = service.client.get(PATH, params={"drafter": "a", "state": "open"}).json()["events"]
    assert [event["id"] for event in found] == [mine]
    assert found[0]["details"] == {"rows": 3}
    assert found[0]["title"] == "no telemetry: x"
    assert service.client.get(PATH, params={"state": "resolved"}).json()["events"] == []


def test_an_event_is_acknowledged_once(service: Service) -> None:
    event = raise_event(service, "x")
    answer = service.client.post(f"{PATH}/{event}/acknowledge")
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["acknowledged_by"]) == (
        "acknowledged",
        "anonymous",
    )
    again = service.client.post(f"{PATH}/{event}/acknowledge")
    assert again.json() == answer.json()
    with service.database.read() as connection:
        rows = list_audit(connection)
    assert [(row.action, row.details) for row in rows] == [("acknowledge", {"event": event})]


def test_a_resolved_event_needs_nobody(service: Service) -> None:
    with service.database.write() as connection:
        notice = open_event(connection, "publication", "info", "a notice").id
    answer = service.client.post(f"{PATH}/{notice}/acknowledge")
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/conflict"


def test_an_event_is_resolved_once_and_a_new_report_opens_another(service: Service) -> None:
    event = raise_event(service, "x")
    service.client.post(f"{PATH}/{event}/acknowledge")
    answer = service.client.post(f"{PATH}/{event}/resolve")
    assert answer.status_code == 200
    body = answer.json()
    assert (body["state"], body["acknowledged_by"]) == ("resolved", "anonymous")
    assert body["resolved_at"] == body["updated_at"]
    assert service.client.post(f"{PATH}/{event}/resolve").json() == body
    with service.database.read() as connection:
        rows = list_audit(connection)
    assert [row.action for row in rows] == ["resolve", "acknowledge"]
    assert raise_event(service, "x") > event
    assert service.client.post(f"{PATH}/77/resolve").status_code == 404


def test_events_of_one_drafter_by_pages(service: Service) -> None:
    for name in ("a", "b"):
        service.register(name)
    ids = [raise_event(service, f"key-{n}", drafter="a") for n in range(3)]
    raise_event(service, "other", drafter="b")
    path = "/v1/drafters/a/events"
    query = {"state": "open", "limit": 2}  # registration left a notice, which is resolved
    first = service.client.get(path, params=query).json()
    assert [event["id"] for event in first["events"]] == ids[:0:-1]
    rest = service.client.get(path, params={**query, "before": first["next_before"]}).json()
    assert ([event["id"] for event in rest["events"]], rest["next_before"]) == ([ids[0]], None)
    assert service.client.get("/v1/drafters/nobody/events").status_code == 404


def test_an_unknown_event_is_404(service: Service) -> None:
    answer = service.client.post(f"{PATH}/7/acknowledge")
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/event-not-found"


@pytest.mark.parametrize(
    "query",
    [
        {"limit": 0},
        {"limit": 501},
        {"limit": "many"},
        {"before": -1},
        {"before": 2**63},
        {"state": "new"},
        {"drafter": "No Slug"},
    ],
)
def test_a_wrong_filter_is_422(service: Service, query: dict[str, Any]) -> None:
    assert service.client.get(PATH, params=query).status_code == 422


@pytest.mark.parametrize("event", ["x", "-1", "99999999999999999999"])
def test_an_id_that_is_none_is_422(service: Service, event: str) -> None:
    assert service.client.post(f"{PATH}/{event}/acknowledge").status_code == 422
