"""Real processes: start, stop, restart, and many of them at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from api.server import listening_socket
from calib.errors import ConfigurationError
from monitoring.store.database import Database
from monitoring.store.telemetry import counters
from tests.service_process import ROOT, ServiceFailedError, ServiceProcess
from tests.support.service import KEY

PATIENCE = 180.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/service.db"


def register(service: ServiceProcess, name: str = "drafter") -> None:
    answer = httpx.put(f"{service.url}/v1/drafters/{name}", json={"key": KEY}, timeout=PATIENCE)
    assert answer.status_code in (200, 201), answer.text


def polled(service: ServiceProcess, **headers: str) -> httpx.Response:
    path = f"{service.url}/v1/drafters/drafter/temperatures?gamma=7"
    return httpx.get(path, headers=headers, timeout=PATIENCE)


def published(service: ServiceProcess, temperatures: list[float]) -> int:
    base = f"{service.url}/v1/drafters/drafter"
    with httpx.Client(timeout=PATIENCE) as client:
        match = {"If-Match": client.get(base).headers["ETag"]}
        body = {"temperatures": temperatures}
        made = client.post(f"{base}/revisions", json=body, headers=match).json()
        answer = client.post(f"{base}/revisions/{made['revision']}/promote", headers=match)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["publication"])


def test_a_free_port_is_found_and_taken() -> None:
    with listening_socket("127.0.0.1", 0) as one:
        port = one.getsockname()[1]
        assert port > 0
        with pytest.raises(ConfigurationError) as caught:
            listening_socket("127.0.0.1", port)
    assert caught.value.field == "port"
    assert "set another port" in caught.value.remedy


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        listening_socket("256.256.256.256", 0)
    with pytest.raises(ConfigurationError):
        listening_socket("203.0.113.7", 0)  # kept for documentation: no machine has it


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_loopback_is_listened_to(host: str) -> None:
    reason = ""
    try:
        with listening_socket(host, 0) as listener:
            assert listener.family is socket.AF_INET6
    except ConfigurationError as error:  # where the machine has no IPv6
        reason = str(error)
    assert "is no address" not in reason


@pytest.mark.slow
def test_sigterm_finishes_and_releases_held_polls(url: str) -> None:
    with ServiceProcess(url, shutdown_seconds=40) as service:
        register(service)
        tag = polled(service).headers["ETag"]

        async def story() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=None)
            path = f"{service.url}/v1/drafters/drafter/temperatures?gamma=7&wait=60"
            async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
                sent = asyncio.Semaphore(0)

                async def trace(name: str, _: object) -> None:
                    if name == "http11.send_request_body.complete":
                        sent.release()

                polls = [
                    asyncio.create_task(
                        client.get(
                            path, headers={"If-None-Match": tag}, extensions={"trace": trace}
                        )
                    )
                    for _ in range(50)
                ]
                for _ in polls:
                    await asyncio.wait_for(sent.acquire(), PATIENCE)
                # What was sent before this one is read before it is answered.
                assert (await client.get(f"{service.url}/healthz")).status_code == 200
                service.process.send_signal(signal.SIGTERM)
                return list(await asyncio.gather(*polls))

        started = time.monotonic()
        answers = asyncio.run(story())
        assert {answer.status_code for answer in answers} <= {304, 503}
        assert all("Retry-After" in a.headers for a in answers if a.status_code == 503)
        assert service.process.wait(PATIENCE) == 0
        assert time.monotonic() - started < 50  # a held poll may take 60
        assert service.events("shutting down")[0]["signal"] == "SIGTERM"
        assert not service.events("not ended in time")


@pytest.mark.slow
def test_sigterm_finishes_commits(url: str) -> None:
    """What was answered 202 is there afterwards, and nothing besides."""
    row = {"confidence_logits": [1.0] * 7, "verified": 7, "accepted": 3}
    with ServiceProcess(url, shutdown_seconds=30) as service:
        register(service)

        async def send(client: httpx.AsyncClient, first: asyncio.Event) -> int:
            path = f"{service.url}/v1/drafters/drafter/telemetry"
            accepted = 0
            while True:
                try:
                    answer = await client.post(path, json={"gamma": 7, "rows": [row] * 5})
                except httpx.TransportError:
                    return accepted  # the service has gone
                if answer.status_code != 202:
                    assert answer.status_code == 503, answer.text
                    return accepted
                accepted += answer.json()["accepted"]
                first.set()

        async def story() -> int:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
                first = asyncio.Event()
                senders = [asyncio.create_task(send(client, first)) for _ in range(8)]
                await asyncio.wait_for(first.wait(), PATIENCE)
                service.process.send_signal(signal.SIGTERM)
                return sum(await asyncio.gather(*senders))

        accepted = asyncio.run(story())
        assert service.process.wait(PATIENCE) == 0
    database = Database.open(url)
    with database.read() as connection:
        assert counters(connection, "drafter").rows == accepted > 0
    database.close()


@pytest.mark.slow
def test_a_second_instance_on_the_same_port_says_so(url: str) -> None:
    with ServiceProcess(url) as service:
        with pytest.raises(ServiceFailedError, match="set another port"):
            ServiceProcess(url, port=service.port)
        assert polled(service).status_code == 404  # the first one goes on


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"DSPARK_CALIB_HOST": "0.0.0.0"}, "token create"),
        ({"DSPARK_CALIB_ALLOW_ANONYMOUS": "false"}, "token create"),
        ({"DSPARK_CALIB_PORT": "many"}, "port"),
        ({"DSPARK_CALIB_DATABASE_URL": "mysql://x"}, "sqlite:///"),
    ],
)
def test_a_start_that_is_refused_is_one_line_and_code_2(
    url: str, settings: dict[str, str], message: str
) -> None:
    environment = {**os.environ, "DSPARK_CALIB_DATABASE_URL": url, "DSPARK_CALIB_PORT": "0"}
    answer = subprocess.run(
        [sys.executable, "-m", "api.server"],
        cwd=ROOT,
        env={**environment, **settings},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert answer.returncode == 2
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stderr.count("error: ") == 1


@pytest.mark.slow
def test_r71_the_bytes_are_the_same_after_kill_and_on_every_replica(url: str) -> None:
    with ServiceProcess(url) as service:
        register(service)
        published(service, [1.5] * 7)
        before = polled(service)
        service.kill()
    with ServiceProcess(url) as one, ServiceProcess(url) as other:
        for replica in (one, other):
            answer = polled(replica)
            assert answer.content == before.content
            assert answer.headers["ETag"] == before.headers["ETag"]
            again = polled(replica, **{"If-None-Match": before.headers["ETag"]})
            assert (again.status_code, again.content) == (304, b"")


@pytest.mark.slow
def test_a_promotion_on_one_replica_wakes_the_polls_of_another(url: str) -> None:
    with ServiceProcess(url) as one, ServiceProcess(url) as other:
        register(one)
        tag = polled(other).headers["ETag"]
        answers: list[httpx.Response] = []

        def wait() -> None:
            path = f"{other.url}/v1/drafters/drafter/temperatures?gamma=7&wait=60"
            answers.append(httpx.get(path, headers={"If-None-Match": tag}, timeout=90))

        poll = threading.Thread(target=wait)
        poll.start()
        time.sleep(0.5)  # until it is held; if it is not yet, the test still holds
        started = time.monotonic()
        number = published(one, [1.25] * 7)
        poll.join(PATIENCE)
        assert time.monotonic() - started < 30
        assert answers[0].status_code == 200
        assert answers[0].json()["publication"] == number
        assert answers[0].content == polled(one).content


@pytest.mark.slow
def test_memory_stays_small(url: str) -> None:
    with ServiceProcess(url) as service:
        register(service)
        for gamma in range(1, 8):
            path = f"{service.url}/v1/drafters/drafter/temperatures?gamma={gamma}"
            assert httpx.get(path, timeout=PATIENCE).status_code == 200
        assert service.memory_bytes() < 150 * 2**20
