"""One attempt is bounded as a whole and keeps nothing of what the receiver says."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler

import pytest

from monitoring.alerts.receivers import Receiver
from monitoring.alerts.transport import AlertRequest, Answer, open_client, post
from tests.monitoring.alerts.receiving_server import ReceivingServer, answer

NOW = 1_795_996_800.0  # 2026-11-30T00:00:00Z


def attempt(url: str, seconds: float = 20.0) -> Answer:
    async def once() -> Answer:
        async with open_client(Receiver("r", "webhook", url)) as client:
            return await post(
                client, AlertRequest(url, {"x-a": "1"}, b"{}"), seconds=seconds, now=NOW
            )

    return asyncio.run(once())


def test_success_is_a_status_of_two_hundred_something() -> None:
    with ReceivingServer(behaviours=[200, 202, 204]) as server:
        assert [attempt(server.url).ok for _ in range(3)] == [True, True, True]
        assert server.received[0].headers["content-type"] == "application/json"
        assert server.received[0].headers["x-a"] == "1"


def test_redirects_are_not_followed() -> None:
    with ReceivingServer() as other, ReceivingServer() as server:
        server.always = lambda handler: answer(handler, 307, Location=f"{other.url}/secrets")
        found = attempt(server.url)
        assert (found.ok, found.error) == (False, "status 307: redirects are not followed")
        assert other.received == []


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A header, one byte at a time: each read is quick, the whole never ends."""
    pause = threading.Event()
    try:
        for byte in b"HTTP/1.1 200 OK\r\nX-A: " + b"a" * 200:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            pause.wait(0.05)
    except OSError:
        pass  # the client has gone, as it should
    handler.close_connection = True


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_receiver_that_takes_its_time_costs_no_more_than_the_time_out(how: str) -> None:
    with ReceivingServer() as server:
        server.always = server.hang if how == "hang" else drip
        started = time.monotonic()
        found = attempt(server.url, seconds=0.5)
        assert (found.ok, found.error) == (False, "no answer within 0.5 s")
        assert time.monotonic() - started < 10.0
        server.let_go.set()


def test_a_receiver_that_is_not_there_is_a_failure_without_its_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/secret-part"
        found = attempt(url)
    assert (found.ok, found.error) == (False, "ConnectError")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        ("999999", 3600.0),
        ("Mon, 30 Nov 2026 00:01:30 GMT", 90.0),
        ("Sun, 29 Nov 2026 23:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
    ],
)
def test_retry_after_is_read_and_bounded(header: str, seconds: float | None) -> None:
    with ReceivingServer() as server:
        server.always = lambda handler: answer(handler, 429, Retry_After=header)
        assert attempt(server.url) == Answer(False, "status 429", seconds)
