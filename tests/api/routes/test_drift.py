from __future__ import annotations

import json

import pytest

from api.drift_schemas import DriftDocument, collecting_document
from calib.canonical_json import canonical_json
from monitoring.store.monitor_states import save
from tests.support.drift import drift_values
from tests.support.service import Service

PATH = "/v1/drafters/drafter/drift"


@pytest.fixture(autouse=True)
def registered(service: Service) -> None:
    service.register()


def test_before_the_worker_has_read_a_row_it_collects(service: Service) -> None:
    answer = service.client.get(PATH)
    assert answer.status_code == 200
    body = answer.json()
    assert (body["status"], body["revision"], body["publication"]) == ("collecting", 0, 1)
    assert (body["rows"], body["tests"], body["consumed_through"]) == (0, [], 0)
    same = service.client.get(PATH, headers={"If-None-Match": answer.headers["ETag"]})
    assert (same.status_code, same.content) == (304, b"")


def test_the_stored_document_is_served_byte_for_byte(service: Service) -> None:
    before = service.client.get(PATH).headers["ETag"]
    written = canonical_json(drift_values("drafter", later_member={"kept": True}))
    with service.database.write() as connection:
        save(connection, "drafter", consumed_through=41, state=b"state", document=written)
    answer = service.client.get(PATH, headers={"If-None-Match": before})
    assert (answer.status_code, answer.content) == (200, written)
    tag = answer.headers["ETag"]
    assert service.client.get(PATH, headers={"If-None-Match": tag}).status_code == 304


def test_an_unknown_drafter_is_404(service: Service) -> None:
    answer = service.client.get("/v1/drafters/nobody/drift")
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/drafter-not-found")


def test_documents_are_as_the_description_says(service: Service) -> None:
    for document in (
        canonical_json(drift_values("drafter")),
        collecting_document("drafter", revision=0, publication=1, published_at=0.0),
    ):
        read = DriftDocument.model_validate_json(document, strict=True)
        assert json.loads(canonical_json(read.model_dump(mode="json"))) == json.loads(document)
    answers = service.client.get("/openapi.json").json()["paths"]["/v1/drafters/{drafter}/drift"]
    schema = answers["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/DriftDocument"}
