from __future__ import annotations

import json
import re
from typing import Any

import pytest

from api.documentation import describe, header, outcomes
from api.problem_catalogue import CATALOGUE
from api.schemas import Health
from tests.support.service import empty_database, running_service

METHODS = ("get", "put", "post", "delete", "patch")


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    url = empty_database(tmp_path_factory.mktemp("service"))
    with running_service(url) as service:
        found: dict[str, Any] = service.client.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    ]


def test_it_is_openapi_31(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "dspark-calib"


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    found = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert found <= set(schemas)
    assert "HTTPValidationError" not in schemas


def test_operation_ids_are_stable_and_unique(document: dict[str, Any]) -> None:
    found = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(found)) == len(found)
    assert {
        "get_temperatures",
        "register_drafter",
        "get_drafter",
        "list_drafters",
        "list_revisions",
        "get_revision",
        "create_revision",
        "promote_revision",
        "rollback",
        "create_recalibration",
        "get_job",
        "get_report",
        "list_engines",
        "list_events",
        "acknowledge_event",
        "put_cost_table",
        "get_cost_table",
        "get_health",
        "get_readiness",
    } <= set(found)


def test_every_operation_is_tagged_and_described(document: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        assert set(operation["tags"]) <= tags, (path, method)
        assert operation["tags"], (path, method)
        assert operation.get("description"), (path, method)
        for parameter in operation.get("parameters", ()):
            assert parameter.get("description"), (path, parameter["name"])


def test_every_error_is_a_problem_with_an_example(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        errors = {code: said for code, said in operation["responses"].items() if code >= "400"}
        assert "500" in errors, (path, method)
        for code, said in errors.items():
            assert set(said["content"]) == {"application/problem+json"}, (path, method, code)
            examples = said["content"]["application/problem+json"]["examples"]
            assert examples, (path, method, code)
            for slug, example in examples.items():
                assert example["value"]["type"] == f"/problems/{slug}"
                assert str(example["value"]["status"]) == code


def test_calls_with_a_token_say_so(document: dict[str, Any]) -> None:
    for path, _, operation in operations(document):
        guarded = path.startswith("/v1/") or path == "/metrics"
        assert bool(operation.get("security")) is guarded, path
        assert ("401" in operation["responses"]) is guarded, path
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")


def test_a_problem_of_a_status_that_a_success_has_is_an_error_of_the_code() -> None:
    found = outcomes({200: describe(Health, "ok", ETag=header("tag"))}, "conflict", body=True)
    assert found[200]["headers"]["ETag"]["schema"] == {"type": "string"}
    assert {401, 403, 409, 413, 415, 422, 500, 503} <= set(found)
    both = outcomes({}, "drafter-not-found", "revision-not-found")[404]
    examples = both["content"]["application/problem+json"]["examples"]
    assert set(examples) == {"drafter-not-found", "revision-not-found"}


def test_public_calls_promise_less() -> None:
    assert set(outcomes({}, public=True)) == {414, 431, 500}


def test_every_problem_type_is_used_somewhere(document: dict[str, Any]) -> None:
    """A type that no call documents is either dead or a call forgot it."""
    used = set(re.findall(r'"/problems/([a-z-]+)"', json.dumps(document)))
    # Of paths and methods that are in no document, and of a service that is about to end.
    elsewhere = {"method-not-allowed", "not-found"}
    assert set(CATALOGUE) - used <= elsewhere
