from __future__ import annotations

import hashlib

import pytest

from calib.calibration_key import CalibrationKey
from monitoring.store.audit import list_audit
from tests.support.service import KEY, Service


def test_a_drafter_is_registered_once(service: Service) -> None:
    first = service.register()
    assert first.status_code == 201
    body = first.json()
    assert body["name"] == "drafter"
    assert body["gamma"] == 7
    assert body["key"] == {
        **KEY,
        "confidence_source": "head",
        "verification_method": "rejection",
        "draft_vocabulary_hash": None,
    }
    assert body["key_digest"] == CalibrationKey.from_dict(KEY).digest
    assert body["aliases"] == {"champion": 0, "challenger": None, "previous": None}
    assert body["publication"] == 1
    again = service.register()
    assert again.status_code == 200
    assert again.content == first.content
    assert again.headers["ETag"] == first.headers["ETag"]
    with service.database.read() as connection:
        assert [row.action for row in list_audit(connection)] == ["register"]


@pytest.mark.parametrize(
    "change",
    [
        {"target_revision": "w2"},
        {"target_quantization": "fp8"},
        {"draft_model": "example-org/other"},
        {"gamma": 8},
        {"slot_convention": "anchor_included"},
        {"confidence_source": "max_log_odds"},
        {"verification_method": "block"},
        {"draft_vocabulary_hash": "abc"},
    ],
)
def test_r64_another_key_is_a_conflict(service: Service, change: dict[str, object]) -> None:
    before = service.register()
    answer = service.register(**change)
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/drafter-key-conflict"
    assert service.client.get("/v1/drafters/drafter").content == before.content


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "#/key"),
        ({"key": {}}, "#/key/target_model"),
        ({"key": {**KEY, "gamma": 0}}, "#/key/gamma"),
        ({"key": {**KEY, "gamma": 255}}, "#/key/gamma"),
        ({"key": {**KEY, "gamma": "7"}}, "#/key/gamma"),
        ({"key": {**KEY, "gamma": True}}, "#/key/gamma"),
        ({"key": {**KEY, "gamma": 7.5}}, "#/key/gamma"),
        ({"key": {**KEY, "target_model": ""}}, "#/key/target_model"),
        ({"key": {**KEY, "target_model": " "}}, "#/key/target_model"),
        ({"key": {**KEY, "target_model": "a\u0000b"}}, "#/key/target_model"),
        ({"key": {**KEY, "target_model": "a\nb"}}, "#/key/target_model"),
        ({"key": {**KEY, "target_model": "x" * 513}}, "#/key/target_model"),
        ({"key": {**KEY, "target_model": 3}}, "#/key/target_model"),
        ({"key": {**KEY, "slot_convention": "other"}}, "#/key/slot_convention"),
        ({"key": {**KEY, "tenant": "x"}}, "#/key/tenant"),
        ({"key": KEY, "name": "x"}, "#/name"),
    ],
)
def test_a_wrong_registration_is_422(
    service: Service, body: dict[str, object], pointer: str
) -> None:
    answer = service.client.put("/v1/drafters/drafter", json=body)
    assert answer.status_code == 422
    assert pointer in {fault["pointer"] for fault in answer.json()["errors"]}
    assert service.client.get("/v1/drafters").json() == {"drafters": []}


def test_a_lone_surrogate_is_422(service: Service) -> None:
    raw = b'{"key": {"target_model": "\\ud800"}}'
    answer = service.client.put(
        "/v1/drafters/drafter", content=raw, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422


@pytest.mark.parametrize("name", ["Upper", "-a", ".a", "_a", "a b", "x" * 129, "ä"])
def test_a_name_that_is_no_slug_is_422(service: Service, name: str) -> None:
    answer = service.register(name)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "path:drafter"


@pytest.mark.parametrize("name", ["a", "0", "a.b_c-d", "x" * 128])
def test_slugs_are_taken(service: Service, name: str) -> None:
    assert service.register(name).status_code == 201
    assert service.poll(name).status_code == 200


def test_the_etag_is_the_digest_and_changes_with_the_state(service: Service) -> None:
    service.register()
    answer = service.client.get("/v1/drafters/drafter")
    tag = answer.headers["ETag"]
    assert tag == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    unchanged = service.client.get("/v1/drafters/drafter", headers={"If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    service.publish([1.5] * 7)
    assert service.etag() != tag


def test_drafters_are_listed_by_name(service: Service) -> None:
    for name in ("b", "a", "c"):
        service.register(name)
    found = service.client.get("/v1/drafters").json()["drafters"]
    assert [drafter["name"] for drafter in found] == ["a", "b", "c"]
    assert found[0] == service.client.get("/v1/drafters/a").json()


def test_an_unknown_drafter_is_404(service: Service) -> None:
    answer = service.client.get("/v1/drafters/nobody")
    assert answer.status_code == 404
    assert answer.json()["type"] == "/problems/drafter-not-found"


def test_a_new_drafter_can_be_polled_at_once(service: Service) -> None:
    """On the replica that registered it, without waiting for the feed."""
    for number in range(5):
        service.register(f"d{number}")
        assert service.poll(f"d{number}").status_code == 200
