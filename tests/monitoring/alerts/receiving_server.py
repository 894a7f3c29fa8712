"""A receiver of alerts for tests: a real HTTP server that keeps what came and answers as told."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

WAIT_SECONDS = 120.0  # a machine that runs other tests may take its time


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = int | Callable[[BaseHTTPRequestHandler], None]


@dataclass
class ReceivingServer:
    """Answers each request with the next behaviour, then with ``always``.

    A behaviour is a status, or a function that answers, hangs or breaks by itself.
    """

    always: Behaviour = 200
    behaviours: list[Behaviour] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.let_go = threading.Event()
        self._came = threading.Condition()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                behaviour = owner.take(Received(self.path, headers, body))
                if callable(behaviour):
                    behaviour(self)
                else:
                    answer(self, behaviour)

            def log_message(self, *_: object) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, request: Received) -> Behaviour:
        with self._came:
            self.received.append(request)
            self._came.notify_all()
            return self.behaviours.pop(0) if self.behaviours else self.always

    def wait_for(self, count: int) -> list[Received]:
        """What has come, once it is at least this many requests."""
        with self._came:
            if not self._came.wait_for(lambda: len(self.received) >= count, WAIT_SECONDS):
                raise AssertionError(f"{len(self.received)} of {count} requests came")
            return list(self.received)

    def hang(self, handler: BaseHTTPRequestHandler) -> None:
        """Say nothing until the test ends."""
        self.let_go.wait(WAIT_SECONDS)
        handler.close_connection = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._thread.join(10.0)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that goes away is part of the tests."""


def answer(handler: BaseHTTPRequestHandler, status: int, **headers: str) -> None:
    """A status with headers (underscores are hyphens) and no body."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
