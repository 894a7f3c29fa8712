from __future__ import annotations

import json
from typing import Any

import pytest

from monitoring.store.audit import list_audit
from tests.support.service import Service

PATH = "/v1/drafters/drafter/revisions"
GOOD = [1.5] * 7


@pytest.fixture(autouse=True)
def registered(service: Service) -> None:
    service.register()


def send(service: Service, raw: bytes, **headers: str) -> Any:
    named = {"If-Match": service.etag(), "Content-Type": "application/json", **headers}
    return service.client.post(PATH, content=raw, headers=named)


R69 = {
    "nan": b'{"temperatures": [1.0, NaN, 1, 1, 1, 1, 1]}',
    "infinity": b'{"temperatures": [1.0, Infinity, 1, 1, 1, 1, 1]}',
    "1e400": b'{"temperatures": [1e400, 1, 1, 1, 1, 1, 1]}',
    "zero": b'{"temperatures": [0, 1, 1, 1, 1, 1, 1]}',
    "negative": b'{"temperatures": [-1, 1, 1, 1, 1, 1, 1]}',
    "empty": b'{"temperatures": []}',
    "text": b'{"temperatures": "1.0"}',
    "true": b'{"temperatures": [true, 1, 1, 1, 1, 1, 1]}',
    "texts": b'{"temperatures": ["1.5", 1, 1, 1, 1, 1, 1]}',
    "too few": b'{"temperatures": [1, 1, 1, 1, 1, 1]}',
    "too many": b'{"temperatures": [1, 1, 1, 1, 1, 1, 1, 1]}',
    "null": b'{"temperatures": null}',
    "null inside": b'{"temperatures": [null, 1, 1, 1, 1, 1, 1]}',
    "nested": b'{"temperatures": [[1], 1, 1, 1, 1, 1, 1]}',
    "above the bound": b'{"temperatures": [20.1, 1, 1, 1, 1, 1, 1]}',
    "below the bound": b'{"temperatures": [0.049, 1, 1, 1, 1, 1, 1]}',
    "missing": b"{}",
    "unknown member": b'{"temperatures": [1, 1, 1, 1, 1, 1, 1], "slopes": []}',
    "wrong time": b'{"temperatures": [1, 1, 1, 1, 1, 1, 1], "fitted_at": "yesterday"}',
    "time without offset": b'{"temperatures": [1,1,1,1,1,1,1], "fitted_at": "2026-11-29T12:00"}',
    "empty reason": b'{"temperatures": [1, 1, 1, 1, 1, 1, 1], "reason": ""}',
    "a list": b"[1, 1, 1, 1, 1, 1, 1]",
    "a number": b"1.0",
    "nothing": b"",
}


@pytest.mark.parametrize("raw", R69.values(), ids=R69.keys())
def test_r69_values_that_are_none_are_422_and_change_nothing(service: Service, raw: bytes) -> None:
    before = service.poll()
    answer = send(service, raw)
    assert answer.status_code == 422, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    body = json.loads(answer.content, parse_constant=pytest.fail)
    assert body["status"] == 422
    assert body["errors"]
    assert service.poll().content == before.content
    assert [r["revision"] for r in service.client.get(PATH).json()["revisions"]] == [0]


def test_r69_a_wrong_value_is_pointed_at(service: Service) -> None:
    body = send(service, b'{"temperatures": [1, 1, 99, 1, 1, 1, 1]}').json()
    assert [fault["pointer"] for fault in body["errors"]] == ["#/temperatures/2"]
    assert "[0.05, 20]" in body["errors"][0]["detail"]


def test_numbers_are_rounded_before_they_are_stored(service: Service) -> None:
    answer = service.create([1.23456789, *GOOD[1:]])
    assert answer.status_code == 201
    assert answer.json()["temperatures"][0] == 1.23457


def test_hand_made_numbers_are_stored_and_not_served(service: Service) -> None:
    before = service.poll()
    answer = service.create(GOOD, reason="from the lab", fitted_at="2026-11-29T12:00:00Z")
    assert answer.status_code == 201
    body = answer.json()
    assert answer.headers["Location"] == f"{PATH}/1"
    assert (body["revision"], body["method"], body["status"]) == (1, "manual", "fitted")
    assert body["provenance"] == {"origin": "manual", "reason": "from the lab"}
    assert body["fitted_at"] == "2026-11-29T12:00:00Z"
    assert body["aliases"] == []
    assert service.client.get(answer.headers["Location"]).json() == body
    assert service.poll().content == before.content


def test_equal_numbers_make_another_revision_of_the_same_digest(service: Service) -> None:
    one, other = service.create(GOOD).json(), service.create(GOOD).json()
    assert (one["revision"], other["revision"]) == (1, 2)
    assert one["digest"] == other["digest"]


def test_a_promotion_publishes(service: Service) -> None:
    service.create(GOOD)
    tag = service.etag()
    answer = service.promote(1)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["publication"], body["revision"], body["replaced"]) == (2, 1, 0)
    assert body["drafter"]["aliases"] == {"champion": 1, "challenger": None, "previous": 0}
    assert answer.headers["ETag"] == service.etag() != tag
    served = service.poll().json()
    assert (served["publication"], served["revision"]) == (2, 1)
    assert served["published_at"] == body["published_at"]
    assert served["digest"] == service.client.get(f"{PATH}/1").json()["digest"]
    aliases = {r["revision"]: r["aliases"] for r in service.client.get(PATH).json()["revisions"]}
    assert aliases == {0: ["previous"], 1: ["champion"]}


def test_the_answer_of_a_change_allows_the_next_one(service: Service) -> None:
    service.create(GOOD)
    tag = service.promote(1).headers["ETag"]
    answer = service.client.post("/v1/drafters/drafter/rollback", headers={"If-Match": tag})
    assert answer.status_code == 200


def test_a_rollback_publishes_the_champion_before(service: Service) -> None:
    service.publish(GOOD)
    service.publish([2.0] * 7)
    answer = service.client.post(
        "/v1/drafters/drafter/rollback",
        json={"reason": "worse at night"},
        headers={"If-Match": service.etag()},
    )
    assert answer.status_code == 200
    assert (answer.json()["publication"], answer.json()["revision"]) == (4, 1)
    assert service.poll().json()["temperatures"] == GOOD


def test_there_may_be_nothing_to_roll_back_to(service: Service) -> None:
    answer = service.client.post(
        "/v1/drafters/drafter/rollback", headers={"If-Match": service.etag()}
    )
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/conflict"


CHANGES = [PATH, f"{PATH}/0/promote", "/v1/drafters/drafter/rollback"]


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_without_if_match_is_428(service: Service, path: str) -> None:
    body = {"json": {"temperatures": GOOD}} if path == PATH else {}
    before = service.poll().content
    answer = service.client.post(path, **body)
    assert answer.status_code == 428
    assert answer.json()["type"] == "/problems/precondition-required"
    assert service.poll().content == before


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_on_an_old_state_is_412(service: Service, path: str) -> None:
    old = service.etag()
    service.publish([2.0] * 7)
    before = service.poll().content
    body = {"json": {"temperatures": GOOD}} if path == PATH else {}
    for header in (old, f"W/{service.etag()}", '"x"'):
        answer = service.client.post(path, headers={"If-Match": header}, **body)
        assert answer.status_code == 412
        assert answer.json()["type"] == "/problems/precondition-failed"
        assert answer.headers["ETag"] == service.etag()
    assert service.poll().content == before


def test_every_change_leaves_an_audit_row(service: Service) -> None:
    headers = {"If-Match": service.etag(), "X-Request-Id": "change-1"}
    service.client.post(PATH, json={"temperatures": GOOD}, headers=headers)
    service.promote(1)
    service.client.post("/v1/drafters/drafter/rollback", headers={"If-Match": service.etag()})
    with service.database.read() as connection:
        rows = list_audit(connection, drafter="drafter")
    assert [row.action for row in rows] == ["publish", "publish", "add_revision", "register"]
    assert rows[2].request_id == "change-1"
    assert {row.actor for row in rows} == {"anonymous"}
    assert rows[1].details["reason"] == "promoted by hand"


def test_revisions_are_listed_newest_first_by_pages(service: Service) -> None:
    for number in range(1, 6):
        service.create([1.0 + number / 10] * 7)
    seen: list[int] = []
    before: int | None = None
    pages = 0
    while True:
        query = {"limit": 2} if before is None else {"limit": 2, "before": before}
        page = service.client.get(PATH, params=query).json()
        seen += [revision["revision"] for revision in page["revisions"]]
        pages += 1
        before = page["next_before"]
        if before is None:
            break
    assert seen == [5, 4, 3, 2, 1, 0]
    assert pages == 3


def test_identity_is_revision_0_with_everything_it_holds(service: Service) -> None:
    body = service.client.get(f"{PATH}/0").json()
    assert (body["status"], body["method"]) == ("identity", "identity")
    assert body["temperatures"] == [1] * 7
    assert body["affine"] is None
    assert body["position_statuses"] == ["insufficient"] * 7


@pytest.mark.parametrize(
    ("path", "slug"),
    [
        (f"{PATH}/9", "revision-not-found"),
        ("/v1/drafters/nobody/revisions", "drafter-not-found"),
        ("/v1/drafters/nobody/revisions/0", "drafter-not-found"),
    ],
)
def test_what_does_not_exist_is_404(service: Service, path: str, slug: str) -> None:
    answer = service.client.get(path)
    assert answer.status_code == 404
    assert answer.json()["type"] == f"/problems/{slug}"


def test_changes_of_what_does_not_exist_are_404(service: Service) -> None:
    headers = {"If-Match": service.etag()}
    assert service.client.post(f"{PATH}/9/promote", headers=headers).status_code == 404
    other = "/v1/drafters/nobody"
    body = {"temperatures": GOOD}
    assert service.client.post(f"{other}/revisions", json=body, headers=headers).status_code == 404
    assert service.client.post(f"{other}/rollback", headers=headers).status_code == 404


@pytest.mark.parametrize("number", ["-1", "x", "1.5", "99999999999999999999"])
def test_a_number_that_is_none_is_422(service: Service, number: str) -> None:
    assert service.client.get(f"{PATH}/{number}").status_code == 422


def test_promoting_the_champion_again_is_a_new_publication(service: Service) -> None:
    service.publish(GOOD)
    answer = service.promote(1)
    assert answer.status_code == 200
    assert answer.json()["publication"] == 3
    assert answer.json()["drafter"]["aliases"]["previous"] == 0
