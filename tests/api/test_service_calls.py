from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from api.service_calls import ServiceCalls, ServiceProblemError, service_exit_codes
from calib.errors import ConfigurationError

ANSWERS = {
    "/fine": (200, "application/json", b'{"a": 1}'),
    "/same": (304, "application/json", b""),
    "/problem": (
        412,
        "application/problem+json",
        json.dumps(
            {"type": "/problems/precondition-failed", "title": "Changed", "detail": "Read it."}
        ).encode(),
    ),
    "/bare": (502, "text/html", b"<h1>bad gateway</h1>"),
    "/list": (500, "application/json", b"[]"),
}


class Handler(BaseHTTPRequestHandler):
    seen: list[dict[str, str]] = []  # noqa: RUF012 - headers of every request, for the tests

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        status, kind, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_answers_come_back(address: str) -> None:
    with ServiceCalls(address, "secret") as service:
        assert service.call("GET", "/fine").json() == {"a": 1}
        assert service.call("GET", "/same").status_code == 304
    assert Handler.seen[-1]["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("path", "status", "slug", "text"),
    [
        ("/problem", 412, "precondition-failed", "Changed: Read it. (status 412)"),
        ("/bare", 502, "", "status 502 without a reason (status 502)"),
        ("/list", 500, "", "status 500 without a reason (status 500)"),
    ],
)
def test_problems_are_typed(address: str, path: str, status: int, slug: str, text: str) -> None:
    with ServiceCalls(address) as service, pytest.raises(ServiceProblemError) as caught:
        service.call("GET", path)
    assert (caught.value.status, caught.value.slug, str(caught.value)) == (status, slug, text)


def test_a_change_names_what_it_was_decided_on(address: str) -> None:
    with ServiceCalls(address) as service:
        assert service.change("/fine", '"tag"', {"reason": "r"}) == {"a": 1}
    assert Handler.seen[-1]["If-Match"] == '"tag"'


def test_no_answer_is_a_problem_too() -> None:
    with (
        ServiceCalls("http://127.0.0.1:9") as service,
        pytest.raises(ServiceProblemError) as caught,
    ):
        service.call("GET", "/fine")
    assert caught.value.status == 0


@pytest.mark.parametrize("url", ["", "127.0.0.1:8765", "ftp://host", "http://", "http://[::1"])
def test_addresses_are_checked(url: str) -> None:
    with pytest.raises(ConfigurationError, match="http://host:port"):
        ServiceCalls(url)


@pytest.mark.parametrize(("status", "code"), [(409, 1), (412, 1), (404, 2), (500, 2), (0, 2)])
def test_exit_codes_tell_refusals_from_mistakes(status: int, code: int) -> None:
    import typer

    with pytest.raises(typer.Exit) as caught, service_exit_codes():
        raise ServiceProblemError(status, "", "words")
    assert caught.value.exit_code == code
