from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from monitoring.store import silences
from monitoring.store.audit import list_audit
from monitoring.store.events import EVENT_KINDS
from tests.support.service import Service

PATH = "/v1/silences"
BODY: dict[str, Any] = {"duration_seconds": 7200, "reason": "weights change"}


def test_a_silence_is_made_listed_ended_and_stays_in_the_record(service: Service) -> None:
    service.register("code")
    made = service.client.post(PATH, json={**BODY, "drafter": "code", "kind": "drift"})
    assert made.status_code == 201
    found = made.json()
    assert (found["state"], found["drafter"], found["kind"]) == ("active", "code", "drift")
    ends, starts = (datetime.fromisoformat(found[key]) for key in ("ends_at", "starts_at"))
    assert (ends - starts).total_seconds() == pytest.approx(7200, abs=0.01)
    with service.database.read() as connection:
        assert silences.silenced_until(connection, "code", "drift") is not None
    assert service.client.get(PATH).json() == {"silences": [found]}
    ended = service.client.delete(f"{PATH}/{found['id']}")
    assert (ended.status_code, ended.json()["state"]) == (200, "removed")
    assert service.client.delete(f"{PATH}/{found['id']}").json() == ended.json()
    assert service.client.get(PATH).json() == {"silences": []}
    assert service.client.get(PATH, params={"ended": "true"}).json()["silences"] == [ended.json()]
    with service.database.read() as connection:
        assert silences.silenced_until(connection, "code", "drift") is None
        rows = [(row.action, row.actor) for row in list_audit(connection, drafter="code")]
    assert rows[:2] == [("unsilence", "anonymous"), ("silence", "anonymous")]


@pytest.mark.parametrize(
    "change",
    [
        {"duration_seconds": 0},
        {"duration_seconds": 90 * 86400 + 1},
        {"duration_seconds": "long"},
        {"reason": ""},
        {"reason": "two\nlines"},
        {"drafter": "No Slug"},
        {"kind": ""},
        {"kind": "drfit"},
        {"until": "tomorrow"},
    ],
    ids=str,
)
def test_what_is_no_silence_is_422(service: Service, change: dict[str, Any]) -> None:
    answer = service.client.post(PATH, json={**BODY, **change})
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/invalid-request"


def test_a_kind_that_no_event_has_is_named_with_those_that_there_are(service: Service) -> None:
    answer = service.client.post(PATH, json={**BODY, "kind": "drfit"})
    (fault,) = answer.json()["errors"]
    assert fault["pointer"] == "#/kind"
    for word in ("drfit", *EVENT_KINDS):
        assert word in answer.json()["detail"]


def test_what_does_not_exist_is_404(service: Service) -> None:
    gone = service.client.delete(f"{PATH}/7")
    assert (gone.status_code, gone.json()["type"]) == (404, "/problems/silence-not-found")
    nobody = service.client.post(PATH, json={**BODY, "drafter": "nobody"})
    assert (nobody.status_code, nobody.json()["type"]) == (404, "/problems/drafter-not-found")
