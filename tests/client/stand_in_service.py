"""A small service with the real one's manners, for tests that need no database.

It speaks HTTP on a real socket: ETags of the body's SHA-256, 304, held polls, key mismatches, and
telemetry with idempotency keys. :attr:`StandInService.answers` puts other answers first.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

DRAFTER = "smollm2-draft"
GAMMA = 3
KEY = "1f" * 32


def publication_body(**changes: Any) -> bytes:
    """The body of a publication; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "affine": None,
        "derived_from_gamma": None,
        "digest": "ab" * 32,
        "drafter": DRAFTER,
        "evidence": {},
        "fitted_at": None,
        "gamma": GAMMA,
        "key": KEY,
        "label_kind": None,
        "method": "manual",
        "position_statuses": ["ok"] * GAMMA,
        "publication": 1,
        "published_at": "2026-11-29T19:30:00.000Z",
        "revision": 0,
        "segment": None,
        "segments": None,
        "status": "fitted",
        "temperatures": [1.0] * GAMMA,
        "valid_until": None,
    }
    return json.dumps({**fields, **changes}, sort_keys=True, separators=(",", ":")).encode()


def etag_of(body: bytes) -> str:
    """The strong ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()}"'


def problem(slug: str, status: int, **headers: str) -> Canned:
    """An RFC 9457 answer."""
    body = json.dumps({"type": f"/problems/{slug}", "title": slug, "status": status}).encode()
    return Canned(status, body, {"Content-Type": "application/problem+json", **headers})


@dataclass
class Canned:
    """An answer made beforehand."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Seen:
    """A request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float


class StandInService:
    """Runs from ``with`` to its end on a free port of the loopback."""

    def __init__(self) -> None:
        self.body = publication_body(status="identity")
        self.key = KEY
        self.seen: list[Seen] = []
        self.answers: deque[Canned] = deque()  # given first, whatever is asked
        self.telemetry_answers: deque[Canned] = deque()  # the same for telemetry alone
        self.rows: list[dict[str, Any]] = []
        self.stored: dict[str, tuple[bytes, bytes]] = {}  # by idempotency key
        self.changed = threading.Condition()
        self._publication = 1
        service = self

        class Handler(_Handler):
            owner = service

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def publish(self, temperatures: Sequence[float], **changes: Any) -> int:
        """Publish these; the publication's number. Held polls are answered."""
        with self.changed:
            self._publication = changes.pop("publication", self._publication + 1)
            changes.setdefault("revision", self._publication - 1)
            self.body = publication_body(
                temperatures=list(temperatures),
                publication=self._publication,
                **{"key": self.key, **changes},
            )
            self.changed.notify_all()
            return self._publication

    def requests(self, method: str) -> list[Seen]:
        """Requests of one method, in order."""
        with self.changed:
            return [seen for seen in self.seen if seen.method == method]

    def wait_for(self, met: Any, seconds: float = 60.0) -> bool:
        """Wait until ``met()`` holds after a request or a publication."""
        with self.changed:
            return self.changed.wait_for(met, seconds)


class _Handler(BaseHTTPRequestHandler):
    owner: StandInService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        owner = self.owner
        seen = self._note(b"")
        if owner.answers:
            return self._answer(owner.answers.popleft())
        if seen.query.get("key") not in (None, owner.key):
            return self._answer(problem("calibration-key-mismatch", 409))
        known = self.headers.get("If-None-Match")
        with owner.changed:
            if known == etag_of(owner.body) and seen.query.get("wait"):
                owner.changed.wait_for(
                    lambda: known != etag_of(owner.body), float(seen.query["wait"])
                )
            body = owner.body
        etag = {"ETag": etag_of(body)}
        if known == etag_of(body):
            return self._answer(Canned(304, b"", etag))
        return self._answer(Canned(200, body, {"Content-Type": "application/json", **etag}))

    def do_POST(self) -> None:
        owner = self.owner
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._note(body)
        for queue in (owner.telemetry_answers, owner.answers):
            if queue:
                return self._answer(queue.popleft())
        key = self.headers["Idempotency-Key"]
        with owner.changed:
            if key in owner.stored and owner.stored[key][0] != body:
                return self._answer(problem("idempotency-key-reused", 422))
            if key not in owner.stored:
                rows = _rows_of(self.headers, body)
                owner.rows += rows
                said = {"accepted": len(rows), "duplicates": 0, "excluded": 0, "rejected": []}
                owner.stored[key] = (body, json.dumps(said).encode())
            answer = owner.stored[key][1]
            owner.changed.notify_all()
        return self._answer(Canned(202, answer, {"Content-Type": "application/json"}))

    def _note(self, body: bytes) -> Seen:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        query = dict(parse_qsl(parts.query))
        seen = Seen(self.command, parts.path, query, headers, body, time.monotonic())
        with self.owner.changed:
            self.owner.seen.append(seen)
            self.owner.changed.notify_all()
        return seen

    def _answer(self, canned: Canned) -> None:
        try:
            self.send_response(canned.status)
            for name, value in canned.headers.items():
                self.send_header(name, value)
            if canned.status != 304:
                self.send_header("Content-Length", str(len(canned.body)))
            self.end_headers()
            self.wfile.write(canned.body)
        except OSError:  # the client has left
            self.close_connection = True


def _rows_of(headers: Any, body: bytes) -> list[dict[str, Any]]:
    if headers["Content-Type"] == "application/vnd.apache.arrow.stream":
        import pyarrow

        table = pyarrow.ipc.open_stream(body).read_all()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    text = gzip.decompress(body) if headers.get("Content-Encoding") == "gzip" else body
    columns = json.loads(text)["columns"]
    names = list(columns)
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
