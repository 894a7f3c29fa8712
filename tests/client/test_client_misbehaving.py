"""Beside any server, an engine's calls return at once, nothing raises, and the numbers stay.

Each case runs a client that holds publication 7 from its file against one bad server, polls and
telemetry alike, while the engine's calls are timed in this thread.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from dspark_calib_client import CalibrationClient, Source, State, TelemetryOptions
from dspark_calib_client.last_known_good import LastKnownGoodFile
from dspark_calib_client.validation import Expected, read_publication
from tests.client import misbehaving as bad
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, etag_of, publication_body
from tests.client.waiting import eventually

# A call may lose the processor to another process for a while, once; calls that waited for a server
# would do so at each of its two failures, and take the time-out of 400 ms.
LONGEST_CALL = 0.3
TIMEOUT = 0.4
PATIENCE = 60.0
GOOD = publication_body(publication=7, revision=3, temperatures=[1.5, 1.25, 1.0])


def body_answer(body: bytes, etag: str | None = None) -> bad.Behaviour:
    tag = etag_of(body) if etag is None else etag
    return bad.always(bad.answer("200 OK", body, "Content-Type: application/json", f"ETag: {tag}"))


def nan_body() -> bytes:
    return publication_body(publication=8).replace(b"[1.0,1.0,1.0]", b"[1.0,NaN,1.0]")


def going_back() -> bad.Behaviour:
    """Publications 6, 5, 4, …, each of them well-formed."""
    numbers = iter(range(6, -1000, -1))

    def behave(connection: socket.socket, over: threading.Event) -> None:
        body_answer(publication_body(publication=max(0, next(numbers))))(connection, over)

    return behave


def redirect_loop(connection: socket.socket, over: threading.Event) -> None:
    head = bad.read_request(connection)
    target = head.split(b" ", 2)[1].decode()
    connection.sendall(bad.answer("307 Temporary Redirect", b"", f"Location: {target}"))
    bad.linger(connection)


SERVERS: dict[str, tuple[bad.Behaviour, str]] = {
    "black hole": (bad.black_hole, "timeout"),
    "header drip": (bad.drip, "timeout"),
    "body drip": (bad.drip_body, "timeout"),
    "hang up": (bad.hang_up, "protocol"),
    "half close": (bad.half_close, "protocol"),
    "reset in the body": (bad.reset_in_body, "protocol"),
    "too long a length": (bad.always(bad.answer("200 OK", GOOD, length=9999)), "protocol"),
    "too short a length": (
        bad.always(bad.answer("200 OK", GOOD, f"ETag: {etag_of(GOOD)}", length=50)),
        "wrong_etag",
    ),
    "gzip bomb": (
        bad.always(bad.answer("200 OK", gzip.compress(b"0" * 10**7), "Content-Encoding: gzip")),
        "encoded",
    ),
    "endless headers": (bad.endless_headers, "protocol"),
    "endless body": (bad.endless_body, "too_large"),
    "garbage": (bad.garbage, "protocol"),
    "an HTML page": (body_answer(b"<html>please log in</html>"), "not_json"),
    "another drafter": (body_answer(publication_body(drafter="other")), "other_drafter"),
    "another key": (body_answer(publication_body(key="ee" * 32)), "other_key"),
    "another gamma": (
        body_answer(publication_body(gamma=4, temperatures=[1.0] * 4)),
        "other_gamma",
    ),
    "NaN": (body_answer(nan_body()), "bad_field"),
    "out of range": (body_answer(publication_body(temperatures=[1.0, 21.0, 1.0])), "bad_field"),
    "wrong ETag": (
        body_answer(publication_body(publication=8), '"' + "0" * 64 + '"'),
        "wrong_etag",
    ),
    "no ETag": (bad.always(bad.answer("200 OK", publication_body(publication=8))), "wrong_etag"),
    "going back": (going_back(), "publication_went_back"),
    "two meanings": (
        body_answer(publication_body(publication=7, temperatures=[9.0, 9.0, 9.0])),
        "publication_conflict",
    ),
    "304 for another ETag": (
        bad.always(b'HTTP/1.1 304 Not Modified\r\nETag: "' + b"0" * 64 + b'"\r\n\r\n'),
        "wrong_etag",
    ),
    "redirect loop": (redirect_loop, "redirect"),
    "500": (bad.always(bad.answer("500 Oops", b"trace")), "server_error"),
    "404": (bad.always(bad.answer("404 No", b"{}")), "not_found"),
    "429": (bad.always(bad.answer("429 Slow down", b"", "Retry-After: 0")), "too_many_requests"),
}


def run_beside(address: AbstractContextManager[str], file: Path, kind: str) -> dict[str, Any]:
    """Time the engine's calls beside one server; the client's metrics at the end."""
    with address as url:
        client = _client(url, file)
        began = time.monotonic()
        assert client.start()
        assert time.monotonic() - began < 10.0
        calls: list[float] = []
        ends = time.monotonic() + PATIENCE
        # On a busy machine even a server that answers at once may miss the time-out.
        while client.metrics().get(f"poll_failed_{kind}", 0) < 2 and time.monotonic() < ends:
            calls.append(_timed_calls(client, len(calls)))
            time.sleep(0.002)
        check_calls(calls)
        found = client.current()
        assert (found.values, found.publication) == ((1.5, 1.25, 1.0), 7)
        assert (found.state, found.source) == (State.STALE, Source.FILE)
        metrics = client.metrics()
        assert metrics.get(f"poll_failed_{kind}", 0) >= 2, metrics
        assert metrics["running"] == 1
        assert "poller_errors" not in metrics
        assert "uploader_errors" not in metrics
        assert metrics["rows_offered"] == len(calls)
        began = time.monotonic()
        client.stop(1.0)
        assert time.monotonic() - began < 10.0
        return client.metrics()


@pytest.mark.parametrize("name", SERVERS)
def test_no_server_can_harm_an_engine(name: str, tmp_path: Path) -> None:
    behaviour, kind = SERVERS[name]
    file = _seeded_file(tmp_path)
    metrics = run_beside(bad.misbehaving(behaviour), file, kind)
    assert metrics["running"] == 0
    # The file still holds what is right.
    found = LastKnownGoodFile(file, {}).load(Expected(DRAFTER, GAMMA, KEY))
    assert found is not None
    assert found.publication.number == 7


def test_a_dead_port_cannot_harm_an_engine(tmp_path: Path) -> None:
    run_beside(bad.dead_port(), _seeded_file(tmp_path), "connect")


def test_tls_garbage_cannot_harm_an_engine(tmp_path: Path) -> None:
    with bad.misbehaving(bad.garbage) as url:
        client = _client(url.replace("http:", "https:"), _seeded_file(tmp_path))
        client.start()
        ends = time.monotonic() + PATIENCE
        calls: list[float] = []
        while client.metrics()["polls_failed"] < 2 and time.monotonic() < ends:
            calls.append(_timed_calls(client, 0))
            time.sleep(0.002)
        check_calls(calls)
        assert client.metrics()["polls_failed"] >= 2
        assert client.current().publication == 7
        client.stop(1.0)


TELEMETRY_SERVERS: dict[str, bad.Behaviour] = {
    "black hole": bad.black_hole,
    "drip": bad.drip,
    "hang up": bad.hang_up,
    "half close": bad.half_close,
    "reset": bad.reset_in_body,
    "HTML page": bad.always(bad.answer("200 OK", b"<html>", "Content-Type: text/html")),
    "empty 202": bad.always(bad.answer("202 Accepted")),
    "redirect loop": redirect_loop,
    "500": bad.always(bad.answer("500 Oops")),
    "endless body": bad.endless_body,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "drop"), [*((name, "oldest") for name in TELEMETRY_SERVERS), ("black hole", "newest")]
)
def test_no_server_can_fill_the_memory(name: str, drop: str) -> None:
    """Rows keep coming and none is taken: the queue stays within bounds and the calls return."""
    with bad.misbehaving(TELEMETRY_SERVERS[name]) as url:
        # Without a key nothing has to be agreed first.
        client = CalibrationClient(
            url,
            DRAFTER,
            GAMMA,
            engine_id="engine-0",
            interval=30.0,
            wait=0,
            timeout=TIMEOUT,
            start_delay=3600.0,
            max_backoff=0.05,
            telemetry=TelemetryOptions(
                queue_rows=500, batch_rows=100, batch_seconds=0.05, drop=drop, body="json"
            ),
        )
        client.start()
        calls: list[float] = []
        ends = time.monotonic() + PATIENCE
        while len(calls) < 2000 or (
            client.metrics()["batch_retries"] < 2 and time.monotonic() < ends
        ):
            calls.append(_timed_calls(client, len(calls)))
            assert client.metrics()["rows_queued"] <= 500
            if len(calls) >= 2000:
                time.sleep(0.002)
        check_calls(calls)
        metrics = client.metrics()
        assert metrics["batch_retries"] >= 2
        assert metrics["rows_delivered"] == 0
        assert metrics["rows_dropped"] > 0
        began = time.monotonic()
        assert not client.stop(0.6)
        assert time.monotonic() - began < 10.0

    def lost() -> int:
        after = client.metrics()
        assert after["rows_offered"] == len(calls)
        return int(after["rows_dropped"] + after["rows_abandoned"])

    assert eventually(lambda: lost() == len(calls))  # the thread may still be counting


def check_calls(seconds: list[float]) -> None:
    """None of the calls waited for a server; one may have met a busy machine."""
    assert sorted([0.0, 0.0, *seconds])[-2] < LONGEST_CALL


def _timed_calls(client: CalibrationClient, step: int) -> float:
    """Seconds of the slowest of the calls that an engine makes in a step."""
    calls: list[Callable[[], object]] = [
        client.current,
        lambda: client.observe([0.5, 0.25, 0.125], 3, 1, request="r1", step=step),
    ]
    longest = 0.0
    for call in calls:
        began = time.perf_counter()
        call()
        longest = max(longest, time.perf_counter() - began)
    return longest


def _client(url: str, file: Path) -> CalibrationClient:
    return CalibrationClient(
        url,
        DRAFTER,
        GAMMA,
        KEY,
        engine_id="engine-0",
        state_file=file,
        interval=0.05,
        wait=0,
        timeout=TIMEOUT,
        start_delay=0.0,
        max_backoff=0.05,
        telemetry=TelemetryOptions(batch_seconds=0.05, body="json"),
    )


def _seeded_file(folder: Path) -> Path:
    """A last-known-good file of publication 7."""
    expected = Expected(DRAFTER, GAMMA, KEY)
    publication = read_publication(GOOD, etag_of(GOOD), expected)
    path = folder / "good.json"
    LastKnownGoodFile(path, {}).save(GOOD, publication, expected, time.time())
    return path
