"""What only sockets and a process of its own can show: cut bodies, lying lengths, SIGKILL."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from calib.formats.arrow import ipc_from_records
from monitoring.ingest import records_of
from monitoring.store.database import Database
from monitoring.store.telemetry import TelemetryCounters, batches_after, counters
from tests.api.ingest_service import ARROW, DRAFTER, JSON, PATH, key
from tests.api.malformed_corpus import GAMMA, GOOD_BODY, malformed_requests
from tests.monitoring.batch_bodies import json_rows, row
from tests.service_process import ServiceProcess
from tests.support.telemetry import synthetic_records

SECONDS = 60.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('server') / 'store.db'}"


@pytest.fixture(scope="module")
def service(url: str) -> Iterator[ServiceProcess]:
    running = ServiceProcess(url)
    body = {"key": key(GAMMA)}
    httpx.put(f"{running.url}/v1/drafters/{DRAFTER}", json=body, timeout=SECONDS).raise_for_status()
    yield running
    running.kill()


def totals(url: str) -> TelemetryCounters:
    with closing(Database.open(url)) as database, database.read() as connection:
        return counters(connection, DRAFTER)


def speak(service: ServiceProcess, *pieces: bytes, end: bool = True) -> bytes:
    """What the server says to these bytes; ``end`` closes our side after them."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as connection:
        for piece in pieces:
            connection.sendall(piece)
        if end:
            connection.shutdown(socket.SHUT_WR)
        said = b""
        while piece := connection.recv(65536):
            said += piece
        return said


def head(*headers: str) -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "Host: localhost", f"Content-Type: {JSON}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.slow
def test_a_body_shorter_than_announced_is_not_stored(service: ServiceProcess, url: str) -> None:
    before = totals(url)
    speak(service, head(f"Content-Length: {len(GOOD_BODY) + 10}"), GOOD_BODY)
    assert totals(url) == before


def test_a_body_longer_than_announced_ends_where_it_says(service: ServiceProcess, url: str) -> None:
    before = totals(url)
    said = speak(service, head(f"Content-Length: {len(GOOD_BODY) - 1}"), GOOD_BODY)
    assert said.startswith(b"HTTP/1.1 400")
    assert totals(url) == before


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: -5",),
        ("Content-Length: five",),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip, nonsense",),
    ],
)
def test_contradictory_lengths_are_refused(
    service: ServiceProcess, url: str, headers: tuple[str, ...]
) -> None:
    before = totals(url)
    said = speak(service, head(*headers), GOOD_BODY)
    assert said == b"" or said.split()[1].startswith(b"4")
    assert totals(url) == before


def test_chunks_are_put_together(service: ServiceProcess, url: str) -> None:
    before = totals(url)
    chunks = [GOOD_BODY[:10], GOOD_BODY[10:11], GOOD_BODY[11:]]
    encoded = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    headers = head("Transfer-Encoding: chunked", "Connection: close")
    said = speak(service, headers, encoded, b"0\r\n\r\n", end=False)
    assert said.startswith(b"HTTP/1.1 202")
    assert totals(url).rows == before.rows + 1


def test_a_chunk_that_is_cut_is_not_stored(service: ServiceProcess, url: str) -> None:
    before = totals(url)
    speak(service, head("Transfer-Encoding: chunked"), b"%x\r\n" % len(GOOD_BODY), GOOD_BODY[:-1])
    assert totals(url) == before


def test_a_sender_that_waits_for_leave_is_refused_before_it_sends(service: ServiceProcess) -> None:
    headers = head(f"Content-Length: {2**40}", "Expect: 100-continue")
    said = speak(service, headers, end=False)
    assert said.startswith(b"HTTP/1.1 413")


def test_a_sender_that_promises_much_and_sends_nothing_keeps_nobody_out(
    service: ServiceProcess, url: str
) -> None:
    before = totals(url)
    idle = [
        socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) for _ in range(20)
    ]
    try:
        for connection in idle:
            connection.sendall(head(f"Content-Length: {60 * 2**20}"))
        answer = httpx.post(
            f"{service.url}{PATH}",
            content=GOOD_BODY,
            headers={"Content-Type": JSON},
            timeout=SECONDS,
        )
        assert answer.status_code == 202
    finally:
        for connection in idle:
            connection.close()
    assert totals(url).rows == before.rows + 1


def test_ingest_loads_no_pandas(service: ServiceProcess) -> None:
    """pyarrow would, with its first array; it is installed here, beside the service."""
    assert importlib.util.find_spec("pandas") is not None
    body = ipc_from_records(synthetic_records(20, gamma=GAMMA))
    for content, kind in ((GOOD_BODY, JSON), (body, ARROW)):
        headers = {"Content-Type": kind}
        answer = httpx.post(f"{service.url}{PATH}", content=content, headers=headers, timeout=60)
        assert answer.status_code == 202
    maps = Path(f"/proc/{service.process.pid}/maps").read_text(encoding="utf-8")
    assert "/numpy/" in maps
    assert "/pandas/" not in maps


async def single_rows(port: int, writer: int, count: int) -> set[str]:
    """One engine that sends every row by itself as soon as the last is durable: all statuses."""
    statuses = set()
    incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
    for step in range(count):
        body = json_rows([row(GAMMA, engine=f"writer-{writer}", request="r", step=step)], GAMMA)
        outgoing.write(head(f"Content-Length: {len(body)}") + body)
        said = (await incoming.readuntil(b"\r\n\r\n")).decode("ascii").lower()
        statuses.add(said.split(" ", 2)[1])
        length = said.partition("\r\ncontent-length:")[2].partition("\r\n")[0]
        accepted = json.loads(await incoming.readexactly(int(length)))["accepted"]
        assert accepted == 1, said
    outgoing.close()
    await outgoing.wait_closed()
    return statuses


@pytest.mark.slow
def test_r74_8_writers_of_500_single_rows(service: ServiceProcess, url: str) -> None:
    """4,000 requests of one row each on SQLite: 4,000 rows, no lock error to a client."""
    before = totals(url)

    async def writers() -> list[set[str]]:
        async with asyncio.timeout(240):
            return await asyncio.gather(*[single_rows(service.port, n, 500) for n in range(8)])

    assert set().union(*asyncio.run(writers())) == {"202"}
    after = totals(url)
    assert after.rows - before.rows == after.batches - before.batches == 4000
    with closing(Database.open(url)) as database, database.read() as connection:
        batches = batches_after(connection, DRAFTER, before.batches, limit=5000)
    records = [records_of(batch.payload) for batch in batches]
    blocks = {(str(r.engine[0]), int(r.step[0])) for r in records if r.engine is not None}
    assert blocks >= {(f"writer-{n}", step) for n in range(8) for step in range(500)}
    entries = map(json.loads, service.log.splitlines())
    assert [entry for entry in entries if entry["level"] == "error"] == []


@pytest.mark.slow
def test_the_malformed_corpus(service: ServiceProcess, url: str) -> None:
    """Each of the corpus, over a socket; afterwards only the reject counter has risen."""
    before = totals(url)
    rejected = 0
    # Not httpx, which refuses to send some of these headers.
    with closing(http.client.HTTPConnection("127.0.0.1", service.port, timeout=SECONDS)) as client:
        for request in malformed_requests():
            client.putrequest("POST", request.path(DRAFTER))
            for name, value in [*request.raw_headers, (b"Content-Length", len(request.body))]:
                client.putheader(name, value)
            client.endheaders(request.body)
            answer = client.getresponse()
            problem = json.loads(answer.read())
            assert answer.headers["content-type"] == "application/problem+json", request.name
            expected = (request.status, f"/problems/{request.slug}")
            assert (answer.status, problem["type"]) == expected, request.name
            rejected += request.rejected
    assert totals(url) == replace(before, rejected=before.rejected + rejected)


@pytest.mark.slow
def test_rows_that_were_acknowledged_survive_sigkill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    service = ServiceProcess(url)
    httpx.put(
        f"{service.url}/v1/drafters/{DRAFTER}", json={"key": key(3)}, timeout=SECONDS
    ).raise_for_status()
    acknowledged: list[int] = []
    enough = threading.Event()

    def send(sender: int) -> None:
        with httpx.Client(base_url=service.url, timeout=SECONDS) as client:
            for number in range(sender, 100_000, 4):
                body = json_rows([row(step=number)])
                headers = {"Content-Type": JSON, "Idempotency-Key": str(number)}
                try:
                    if client.post(PATH, content=body, headers=headers).status_code == 202:
                        acknowledged.append(number)
                except httpx.TransportError:
                    return
                if len(acknowledged) > 40:
                    enough.set()

    senders = [threading.Thread(target=send, args=(k,)) for k in range(4)]
    for sender in senders:
        sender.start()
    assert enough.wait(SECONDS)
    service.kill()
    for sender in senders:
        sender.join(SECONDS)
    with closing(Database.open(url)) as database, database.read() as connection:
        found = batches_after(connection, DRAFTER, 0, limit=100_000)
    steps = [int(step) for batch in found for step in records_of(batch.payload).columns()["step"]]
    assert len(steps) == len(set(steps))
    assert set(acknowledged) <= set(steps)
