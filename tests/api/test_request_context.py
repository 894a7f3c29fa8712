from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from api.request_context import (
    LARGEST_HEADERS,
    LARGEST_QUERY,
    SECURITY_HEADERS,
    RequestContext,
    accepted_request_id,
)


async def hello(request: Request) -> Response:
    return PlainTextResponse(f"{request.method} {request.state.request_id}")


async def streamed(_: Request) -> Response:
    return StreamingResponse(iter([b"one", b"two"]))


async def own_policy(_: Request) -> Response:
    return PlainTextResponse("", headers={"Content-Security-Policy": "default-src 'self'"})


async def quiet(request: Request) -> Response:
    request.state.quiet = True
    return PlainTextResponse("")


async def broken(_: Request) -> Response:
    raise ZeroDivisionError("secret internals")


async def broken_later(_: Request) -> Response:
    def parts() -> Any:
        yield b"one"
        raise ZeroDivisionError

    return StreamingResponse(parts())


PATHS = {
    "/hello": hello,
    "/streamed": streamed,
    "/policy": own_policy,
    "/quiet": quiet,
    "/broken": broken,
    "/later": broken_later,
}


@pytest.fixture(scope="module")
def client() -> TestClient:
    app = Starlette(routes=[Route(path, handler) for path, handler in PATHS.items()])
    app.add_middleware(RequestContext)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize("given", ["a", "Abc-123_.:/+=", "x" * 128])
def test_a_sane_request_id_is_kept(client: TestClient, given: str) -> None:
    answer = client.get("/hello", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"] == given
    assert answer.text == f"GET {given}"


@pytest.mark.parametrize("given", [None, b"", b"a b", b"a\r\nb", b"x" * 129, "é".encode(), b"{}"])
def test_another_request_id_is_made_anew(given: bytes | None) -> None:
    made = accepted_request_id(given)
    assert re.fullmatch("[0-9a-f]{32}", made)
    assert made != accepted_request_id(given)


@pytest.mark.parametrize("path", ["/hello", "/nowhere", "/broken"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    for name, value in SECURITY_HEADERS:
        assert answer.headers.get_list(name.decode()) == [value.decode()]
    assert "server" not in answer.headers


def test_a_route_may_have_a_content_policy_of_its_own(client: TestClient) -> None:
    answer = client.get("/policy")
    assert answer.headers.get_list("content-security-policy") == ["default-src 'self'"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/hello", "/streamed"])
def test_head_is_get_without_its_body(client: TestClient, path: str) -> None:
    headers = {"X-Request-Id": "same"}
    get, head = client.get(path, headers=headers), client.head(path, headers=headers)
    assert head.status_code == get.status_code == 200
    assert head.content == b""
    assert get.content
    assert dict(head.headers) == dict(get.headers)


def test_an_unforeseen_fault_is_a_problem_without_internals(client: TestClient) -> None:
    with capture_logs() as logs:
        answer = client.get("/broken", headers={"X-Request-Id": "id-7"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["request_id"] == "id-7"
    assert "secret" not in answer.text
    assert any("secret internals" in str(entry.get("exc_info")) for entry in logs)


def test_a_fault_within_the_answer_ends_the_connection(client: TestClient) -> None:
    with capture_logs() as logs:
        answer = client.get("/later")
    assert answer.content == b"one"
    assert any(entry["event"] == "answer broken off" for entry in logs)


def test_one_line_is_logged_per_request(client: TestClient) -> None:
    with capture_logs() as logs:
        client.get("/hello?token=s3cret", headers={"X-Request-Id": "id-8"})
    (entry,) = [entry for entry in logs if entry["event"] == "request"]
    assert (entry["method"], entry["path"], entry["status"]) == ("GET", "/hello", 200)
    assert entry["request_id"] == "id-8"
    assert entry["milliseconds"] >= 0
    assert entry["log_level"] == "info"
    assert "s3cret" not in str(entry)


def test_quiet_answers_are_logged_as_debug(client: TestClient) -> None:
    with capture_logs() as logs:
        client.get("/quiet")
    assert [entry["log_level"] for entry in logs if entry["event"] == "request"] == ["debug"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/hello?" + "x" * LARGEST_QUERY, {}, 200),
        ("/hello?" + "x" * (LARGEST_QUERY + 1), {}, 414),
        ("/" + "x" * 3000, {}, 414),
        ("/hello", {"x-a": "y" * (LARGEST_HEADERS + 1)}, 431),
        ("/hello", {f"x-{n}": "y" for n in range(200)}, 431),
    ],
)
def test_what_is_too_long_is_refused(
    client: TestClient, path: str, headers: dict[str, str], status: int
) -> None:
    answer = client.get(path, headers=headers)
    assert answer.status_code == status
    if status != 200:
        assert answer.json()["status"] == status
