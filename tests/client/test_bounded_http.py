"""An exchange ends in time and in one word, whatever the other side does."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dspark_calib_client.bounded_http import BoundedHttp
from dspark_calib_client.errors import TransferError
from tests.client import misbehaving as bad
from tests.client.stand_in_service import Canned, StandInService

SECONDS = 0.6  # where only the end of the time ends it
PATIENCE = 60.0  # where the answer does
SLACK = 15.0  # for a busy machine; those who hang do so for 30 s


@pytest.fixture
def http() -> Iterator[BoundedHttp]:
    client = BoundedHttp(token=lambda: "secret", user_agent="tests")
    yield client
    client.close()


def fault(http: BoundedHttp, url: str, **options: Any) -> str:
    """The kind of fault, and that it came in time."""
    options = {"seconds": PATIENCE, "largest_body": 10_000, **options}
    began = time.monotonic()
    with pytest.raises(TransferError) as caught:
        http.exchange("GET", url, **options)
    assert time.monotonic() - began < SECONDS + SLACK
    return caught.value.kind


def test_a_whole_answer_comes_back(http: BoundedHttp, service: StandInService) -> None:
    service.answers.append(Canned(200, b"hello", {"X-Word": "yes", "ETag": '"1"'}))
    answer = http.exchange(
        "POST",
        service.url + "/path",
        seconds=PATIENCE,
        largest_body=10,
        params={"a": "1 &2"},
        headers={"X-Mine": "m"},
        content=b"body",
    )
    assert (answer.status, answer.body) == (200, b"hello")
    assert (answer.headers["x-word"], answer.headers["etag"]) == ("yes", '"1"')
    (seen,) = service.seen
    assert (seen.path, seen.query, seen.body) == ("/path", {"a": "1 &2"}, b"body")
    assert seen.headers["authorization"] == "Bearer secret"
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["user-agent"] == "tests"
    assert seen.headers["x-mine"] == "m"


def test_the_token_may_change(service: StandInService) -> None:
    tokens = iter(["one", None, "two"])
    http = BoundedHttp(token=lambda: next(tokens), user_agent="tests")
    for _ in range(3):
        http.exchange("GET", service.url, seconds=PATIENCE, largest_body=10_000)
    http.close()
    sent = [seen.headers.get("authorization") for seen in service.seen]
    assert sent == ["Bearer one", None, "Bearer two"]


def test_connections_are_kept(http: BoundedHttp) -> None:
    connections = []

    def count(connection: socket.socket, over: threading.Event) -> None:
        connections.append(connection)
        while bad.read_request(connection):
            connection.sendall(bad.answer("200 OK", b"x"))

    with bad.misbehaving(count) as url:
        for _ in range(5):
            http.exchange("GET", url, seconds=PATIENCE, largest_body=10)
        http.close()
    assert len(connections) == 1


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (bad.black_hole, "timeout"),
        (bad.drip, "timeout"),
        (bad.drip_body, "timeout"),
        (bad.hang_up, "protocol"),
        (bad.half_close, "protocol"),
        (bad.reset_in_body, "protocol"),
        (bad.endless_headers, "protocol"),
        (bad.endless_body, "too_large"),
        (bad.garbage, "protocol"),
        (bad.always(bad.answer("200 OK", b"short", length=500)), "protocol"),
        (bad.always(bad.answer("200 OK", b"x" * 20_000)), "too_large"),
        (bad.always(bad.answer("302 Found", b"", "Location: /again")), "redirect"),
        (bad.always(bad.answer("308 Permanent", b"", "Location: http://other/")), "redirect"),
        (
            bad.always(bad.answer("200 OK", gzip.compress(b"x"), "Content-Encoding: gzip")),
            "encoded",
        ),
        (bad.always(bad.answer("200 OK", b"x", "Content-Encoding: br")), "encoded"),
        (bad.always(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"), "protocol"),
        (bad.always(b"HTTP/1.1 2000 OK\r\n\r\n"), "protocol"),
    ],
)
def test_bad_servers(http: BoundedHttp, behaviour: bad.Behaviour, kind: str) -> None:
    with bad.misbehaving(behaviour) as url:
        seconds = SECONDS if kind == "timeout" else PATIENCE
        assert fault(http, url, seconds=seconds) == kind
        assert fault(http, url, seconds=seconds) == kind  # nothing of the first is left behind


def test_a_dead_port(http: BoundedHttp) -> None:
    with bad.dead_port() as url:
        assert fault(http, url) == "connect"


def test_a_name_that_does_not_exist(http: BoundedHttp) -> None:
    began = time.monotonic()
    with pytest.raises(TransferError):
        http.exchange("GET", "http://no-such-host.invalid/", seconds=1.0, largest_body=10)
    assert time.monotonic() - began < 40.0  # name resolution has its own time-out


def test_a_body_sent_to_a_server_that_does_not_read(http: BoundedHttp) -> None:
    with bad.misbehaving(bad.black_hole) as url:
        assert fault(http, url, content=b"x" * 20_000_000, seconds=SECONDS) == "timeout"


def test_a_gzip_bomb_is_never_inflated(http: BoundedHttp) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    with bad.misbehaving(bad.always(bad.answer("200 OK", bomb, "Content-Encoding: gzip"))) as url:
        assert fault(http, url, largest_body=10_000_000) == "encoded"


def test_tls_garbage(http: BoundedHttp) -> None:
    with bad.misbehaving(bad.garbage) as url:
        assert fault(http, url.replace("http:", "https:")) in ("connect", "protocol")


def test_tls_that_is_never_answered(http: BoundedHttp) -> None:
    with bad.misbehaving(bad.black_hole) as url:
        assert fault(http, url.replace("http:", "https:"), seconds=SECONDS) == "timeout"


def test_a_certificate_that_nobody_signed(http: BoundedHttp, tmp_path: Path) -> None:
    with bad.misbehaving(_tls(tmp_path, bad.always(bad.answer("200 OK", b"x")))) as url:
        assert fault(http, url.replace("http:", "https:")) == "connect"


def test_a_slow_answer_over_tls_ends_in_time(tmp_path: Path) -> None:
    http = BoundedHttp(token=lambda: None, user_agent="tests", verify=False)
    with bad.misbehaving(_tls(tmp_path, bad.drip)) as url:
        assert fault(http, url.replace("http:", "https:"), seconds=1.0) == "timeout"
    http.close()


def test_a_good_answer_over_tls(tmp_path: Path) -> None:
    http = BoundedHttp(token=lambda: None, user_agent="tests", verify=False)
    with bad.misbehaving(_tls(tmp_path, bad.always(bad.answer("200 OK", b"x")))) as url:
        secure = url.replace("http:", "https:")
        assert http.exchange("GET", secure, seconds=PATIENCE, largest_body=10).body == b"x"
    http.close()


def test_a_token_function_that_raises_is_a_fault(service: StandInService) -> None:
    def fail() -> str:
        raise OSError("no such secret")

    http = BoundedHttp(token=fail, user_agent="tests")
    assert fault(http, service.url) == "setup"
    assert service.seen == []


def test_a_token_that_no_header_can_hold_is_a_fault(service: StandInService) -> None:
    http = BoundedHttp(token=lambda: "a\r\nX-Evil: 1", user_agent="tests")
    assert fault(http, service.url) in ("protocol", "setup")
    assert service.seen == []
    http.close()


@pytest.mark.parametrize("way", ["abort", "interrupt"])
def test_another_thread_can_end_it(http: BoundedHttp, way: str) -> None:
    waiting = threading.Event()

    def wait(connection: socket.socket, over: threading.Event) -> None:
        bad.read_request(connection)
        waiting.set()
        over.wait(90.0)

    def end() -> None:
        waiting.wait(PATIENCE)
        getattr(http, way)()

    with bad.misbehaving(wait) as url:
        ender = threading.Thread(target=end)
        ender.start()
        began = time.monotonic()
        with pytest.raises(TransferError) as caught:
            http.exchange("GET", url, seconds=120.0, largest_body=10)
        assert time.monotonic() - began < 60.0
        ender.join(PATIENCE)
    assert caught.value.kind == {"abort": "aborted", "interrupt": "interrupted"}[way]


def test_after_an_abort_nothing_is_sent(http: BoundedHttp, service: StandInService) -> None:
    http.abort()
    assert fault(http, service.url) == "aborted"
    assert service.seen == []


def test_after_an_interrupt_the_next_follows(http: BoundedHttp, service: StandInService) -> None:
    http.interrupt()  # nothing is under way
    assert http.exchange("GET", service.url, seconds=PATIENCE, largest_body=10_000).status == 200


def test_a_late_timer_does_not_end_the_next_exchange(
    http: BoundedHttp, service: StandInService
) -> None:
    for _ in range(20):
        http._expire(object())  # a timer of an exchange that is over
        assert (
            http.exchange("GET", service.url, seconds=PATIENCE, largest_body=10_000).status == 200
        )


def test_no_threads_are_left_behind(http: BoundedHttp, service: StandInService) -> None:
    for _ in range(5):
        http.exchange("GET", service.url, seconds=30.0, largest_body=10_000)
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    for timer in timers:
        timer.join(5.0)
    assert not any(timer.is_alive() for timer in timers)


def _tls(folder: Path, behaviour: bad.Behaviour) -> bad.Behaviour:
    """The same over TLS, with a certificate of its own."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run(
        [*command, "-newkey", "rsa:2048", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def behave(connection: socket.socket, over: threading.Event) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            behaviour(secure, over)

    return behave
