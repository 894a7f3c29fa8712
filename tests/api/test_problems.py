from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, Query
from pydantic import BaseModel
from starlette.testclient import TestClient

from api.problems import (
    MEDIA_TYPE,
    FieldError,
    ProblemError,
    install_problem_handlers,
    problem_of,
    problem_response,
)
from calib.errors import (
    CalibrationError,
    CalibrationValueError,
    FitRefusedError,
    FormatError,
    NotFittedError,
)
from monitoring.store.errors import (
    ConflictError,
    LeaseLostError,
    NotFoundError,
    PreconditionFailedError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)


def body_of(response: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(response.body)
    return found


def test_a_problem_has_the_members_of_rfc_9457() -> None:
    response = problem_response(
        "invalid-request",
        "gamma is missing",
        errors=[FieldError("query:gamma", "is missing")],
        headers={"Retry-After": "1"},
        instance="/v1/drafters",
        request_id="id-1",
        limit=3,
    )
    assert response.status_code == 422
    assert response.headers["content-type"] == MEDIA_TYPE
    assert response.headers["retry-after"] == "1"
    assert response.headers["cache-control"] == "no-store"
    assert body_of(response) == {
        "type": "/problems/invalid-request",
        "title": "The request is not valid",
        "status": 422,
        "detail": "gamma is missing",
        "instance": "/v1/drafters",
        "request_id": "id-1",
        "errors": [{"pointer": "query:gamma", "detail": "is missing"}],
        "limit": 3,
    }


def test_a_problem_is_ascii_and_bounded() -> None:
    errors = [FieldError("#", "x")] * 500
    response = problem_response("conflict", "\ud800é" * 5000, errors=errors, instance="/" * 9999)
    body = body_of(response)  # also lone surrogates have become ASCII
    assert len(body["detail"]) == 2000
    assert len(body["instance"]) == 2000
    assert len(body["errors"]) == 100


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (ProblemError("not-acceptable", "x"), "not-acceptable"),
        (NotFoundError("drafter", "x"), "drafter-not-found"),
        (NotFoundError("revision", "x/1"), "revision-not-found"),
        (NotFoundError("job", "x"), "job-not-found"),
        (NotFoundError("event", 1), "event-not-found"),
        (NotFoundError("token", "x"), "not-found"),
        (ConflictError("event", 1, "it is resolved"), "conflict"),
        (PreconditionFailedError("drafter", "x", 1, 2), "precondition-failed"),
        (StoreBusyError("locked"), "store-busy"),
        (StoreUnavailableError("secret-host is away"), "store-unavailable"),
        (StoreFullError("no room"), "store-full"),
        (LeaseLostError("j"), "internal-error"),
        (StoreError("odd"), "internal-error"),
        (CalibrationValueError("temperatures[1]", 99, "too hot"), "invalid-request"),
        (FormatError("body", "no JSON", "send JSON"), "invalid-request"),
        (FitRefusedError("no_rows", "none"), "invalid-request"),
        (NotFittedError("fit first"), "invalid-request"),
        (CalibrationError("?"), "invalid-request"),
        (ValueError("of a library"), "internal-error"),
    ],
)
def test_errors_of_the_core_have_their_problem(error: Exception, slug: str) -> None:
    assert problem_of(error).kind.slug == slug


def test_a_field_of_the_core_becomes_a_json_pointer() -> None:
    problem = problem_of(CalibrationValueError("temperatures[1]", float("nan"), "give a number"))
    assert [fault.pointer for fault in problem.errors] == ["#/temperatures/1"]
    assert problem_response("invalid-request", problem.detail, errors=problem.errors)


@pytest.mark.parametrize("error", [StoreBusyError("x"), StoreUnavailableError("x")])
def test_what_passes_says_when_to_come_back(error: StoreError) -> None:
    assert int(problem_of(error).headers["Retry-After"]) >= 1


def test_an_outage_does_not_name_hosts() -> None:
    detail = problem_of(StoreUnavailableError("connection to 10.0.0.7 refused")).detail
    assert "10.0.0.7" not in detail


class Item(BaseModel):
    """A body."""

    name: str
    numbers: list[float]


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = FastAPI()
    install_problem_handlers(app)

    @app.post("/items/{item}")
    def create(item: int, body: Item, wait: Annotated[int, Query(ge=0)] = 0) -> None:
        raise CalibrationValueError("numbers[0]", body.numbers, "give better ones")

    @app.get("/items/{item}")
    def get(item: int) -> None:
        raise NotFoundError("drafter", item)

    return TestClient(app, raise_server_exceptions=False)


Send = Callable[..., Any]


def test_404_names_the_path(client: TestClient) -> None:
    answer = client.get("/nowhere")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.json()["type"] == "/problems/not-found"
    assert "/nowhere" in answer.json()["detail"]


def test_405_allows_every_method_of_the_path(client: TestClient) -> None:
    answer = client.delete("/items/1")
    assert answer.status_code == 405
    assert answer.headers["content-type"] == MEDIA_TYPE
    assert answer.headers["allow"] == "GET, HEAD, POST"


def test_422_points_at_each_fault(client: TestClient) -> None:
    answer = client.post("/items/x?wait=-1", json={"numbers": [1, "two"]})
    assert answer.status_code == 422
    pointers = {fault["pointer"] for fault in answer.json()["errors"]}
    assert pointers == {"path:item", "query:wait", "#/name", "#/numbers/1"}


def test_a_broken_body_is_400(client: TestClient) -> None:
    answer = client.post(
        "/items/1", content=b'{"name": ', headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["type"] == "/problems/unreadable-request"


def test_typed_errors_of_a_handler_are_translated(client: TestClient) -> None:
    assert client.get("/items/7").json()["type"] == "/problems/drafter-not-found"
    answer = client.post("/items/7", json={"name": "x", "numbers": [1]})
    assert answer.json()["errors"][0]["pointer"] == "#/numbers/0"
