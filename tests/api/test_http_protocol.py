from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from api import http_protocol
from api.http_protocol import LimitedHttpProtocol
from api.server import listening_socket

PATIENCE = 30.0


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the number of bytes of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def address(application: Any = hello) -> Iterator[tuple[uvicorn.Server, Any, int]]:
    with listening_socket("127.0.0.1", 0) as listener:
        config = uvicorn.Config(
            application, http=LimitedHttpProtocol, ws="none", lifespan="off", log_config=None
        )
        yield uvicorn.Server(config), listener, listener.getsockname()[1]


async def exchanged(raw: bytes, port: int, *, end: bool = True) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(raw)
    if end:
        writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return answer


def answered(*requests: bytes, end: bool = True) -> list[bytes]:
    """What a server answers to each request on a connection of its own."""

    async def story() -> list[bytes]:
        with address() as (server, listener, port):
            task = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                return [await exchanged(request, port, end=end) for request in requests]
            finally:
                server.should_exit = True
                await asyncio.wait_for(task, PATIENCE)

    return asyncio.run(story())


def problem(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head.lower()
    assert b"x-content-type-options: nosniff" in head.lower()
    assert b"connection: close" in head.lower()
    found: dict[str, Any] = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % found["status"])
    assert found["request_id"]
    return found


def request(*headers: bytes, path: bytes = b"/", body: bytes = b"") -> bytes:
    lines = [b"GET %s HTTP/1.1" % path, b"Host: x", b"Connection: close", *headers]
    return b"\r\n".join([*lines, b"", b""]) + body


def test_requests_within_the_limits_are_handed_over() -> None:
    filler = b"X-A: " + b"y" * 20_000
    plain, large = answered(request(), request(filler, b"Content-Length: 5", body=b"12345"))
    assert plain.startswith(b"HTTP/1.1 200")
    assert large.endswith(b"\r\n\r\n5")


def test_what_is_no_http_is_a_problem() -> None:
    (answer,) = answered(b"\x16\x03\x01 this is TLS\r\n\r\n")
    assert problem(answer)["type"] == "/problems/unreadable-request"


def test_headers_without_end_are_431() -> None:
    many = [b"X-%d: " % number + b"y" * 1000 for number in range(200)]
    (answer,) = answered(request(*many))
    assert problem(answer)["type"] == "/problems/headers-too-large"


def test_an_address_without_end_is_414() -> None:
    (answer,) = answered(request(path=b"/" + b"x" * 50_000))
    assert problem(answer)["type"] == "/problems/uri-too-long"


def test_limits_count_for_each_request_of_a_connection() -> None:
    filler = b"X-A: " + b"y" * 30_000
    first = request(filler).replace(b"Connection: close\r\n", b"")
    (answer,) = answered(first * 3 + request(filler), end=False)
    assert answer.count(b"HTTP/1.1 200") == 4


def test_a_request_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.2)
    nothing, half = answered(b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ", end=False)
    assert (nothing, half) == (b"", b"")


def test_a_slow_body_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is on the headers: bodies have limits of their own."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS", 0.1)

    async def story() -> bytes:
        with address() as (server, listener, port):
            task = asyncio.create_task(server.serve(sockets=[listener]))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(b"Content-Length: 2") + b"1")
            await asyncio.sleep(0.4)
            writer.write(b"2")
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
            server.should_exit = True
            await asyncio.wait_for(task, PATIENCE)
            return answer

    assert asyncio.run(story()).endswith(b"\r\n\r\n2")


def test_an_answer_waits_for_who_reads_slowly() -> None:
    size, pieces = 2**20, 16
    sent = 0

    async def large(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(pieces):
            await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def story() -> tuple[int, int]:
        with address(large) as (server, listener, port):
            task = asyncio.create_task(server.serve(sockets=[listener]))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request())
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.1)
            early = sent
            answer = await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
            server.should_exit = True
            await asyncio.wait_for(task, PATIENCE)
            return early, answer.count(b"x")

    early, received = asyncio.run(story())
    assert early < pieces
    assert received == size * pieces


def test_a_connection_holds_only_what_it_needs() -> None:
    """Own attributes in the instance's dictionary would cost 1 kB, an empty deque 0.7 kB."""
    config = uvicorn.Config(hello, http=LimitedHttpProtocol, ws="none", log_config=None)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        protocol = LimitedHttpProtocol(config, uvicorn.Server(config).server_state, {}, loop)
        protocol.connection_made(asyncio.Transport())
        assert len(vars(protocol)) <= 30
        assert not set(LimitedHttpProtocol.__slots__) & set(vars(protocol))
        held = [*vars(protocol).values(), *vars(protocol.flow).values()]
        assert not [value for value in held if isinstance(value, deque | asyncio.Event)]

    asyncio.run(story())
