"""What engines see while people change what is served: whole vectors, true digests, no way back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from monitoring.store.database import Database
from monitoring.store.telemetry import counters
from tests.postgres_server import dialects, shared_server
from tests.service_process import ServiceProcess
from tests.support.service import KEY

PATIENCE = 120.0
READERS = 10
WRITERS = 8
WRITER_ROWS = 500
FLIPS = {"sqlite": 1000, "postgresql": 300}
BASE = "/v1/drafters/drafter"
VECTORS = {1: [1.1] * 7, 2: [1.9] * 7}


@pytest.fixture(params=dialects())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/service.db"
        return
    name = f"consistency_{time.monotonic_ns()}"
    yield shared_server().create_database(name)
    shared_server().drop_database(name)


@contextmanager
def replicas(url: str) -> Iterator[list[ServiceProcess]]:
    """Two services that start on an empty database at the same time."""
    with ExitStack() as stack, ThreadPoolExecutor() as starting:
        started = [starting.submit(ServiceProcess, url) for _ in range(2)]
        for service in started:
            stack.callback(lambda service=service: service.exception() or service.result().kill())
        yield [service.result() for service in started]


@dataclass
class Reader:
    """An engine that polls all the time, and what it has seen."""

    base: str
    digests: dict[int, str]
    last: int = 0
    statuses: set[int] = field(default_factory=set)
    bodies: dict[int, bytes] = field(default_factory=dict)

    async def poll(self, stop: asyncio.Event) -> None:
        tag = ""
        async with httpx.AsyncClient(base_url=self.base, timeout=PATIENCE) as client:
            while not stop.is_set():
                path = f"{BASE}/temperatures?gamma=7&wait=1"
                answer = await client.get(path, headers={"If-None-Match": tag} if tag else {})
                self.statuses.add(answer.status_code)
                if answer.status_code == 200:
                    tag = answer.headers["ETag"]
                    self.check(answer)

    def check(self, answer: httpx.Response) -> None:
        body = answer.json()
        assert answer.headers["ETag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
        assert len(set(body["temperatures"])) == 1, "a mixed vector"
        assert body["digest"] == self.digests[body["revision"]]
        assert body["publication"] == int(answer.headers["Publication"]) > self.last
        self.last = body["publication"]
        self.bodies[self.last] = answer.content


async def changed(client: httpx.AsyncClient, path: str) -> httpx.Response:
    """A change, made anew for as long as somebody else was faster."""
    while True:
        match = {"If-Match": (await client.get(BASE)).headers["ETag"]}
        answer = await client.post(path, headers=match)
        if answer.status_code != 412:
            assert answer.status_code == 200, answer.text
            return answer


async def flip(bases: list[str], flips: int) -> int:
    """Promote one revision after the other, now and then roll back; the last publication."""
    number = 0
    clients = [httpx.AsyncClient(base_url=base, timeout=PATIENCE) for base in bases]
    for turn in range(flips):
        client = clients[turn % len(clients)]
        back = turn % 7 == 6
        path = f"{BASE}/rollback" if back else f"{BASE}/revisions/{1 + turn % 2}/promote"
        found = (await changed(client, path)).json()["publication"]
        assert found == number + 1 or number == 0
        number = found
    for client in clients:
        await client.aclose()
    return number


async def write(base: str, engine: int, total: int) -> int:
    """Rows of one engine in batches of 20; how many were acknowledged."""
    accepted = 0
    async with httpx.AsyncClient(base_url=base, timeout=PATIENCE) as client:
        for start in range(0, total, 20):
            rows = [
                {
                    "confidence_logits": [1.0] * 7,
                    "verified": 7,
                    "accepted": 3,
                    "engine": f"engine-{engine}",
                    "request": "request",
                    "step": step,
                }
                for step in range(start, start + 20)
            ]
            body = {"gamma": 7, "rows": rows}
            answer = await client.post(f"{BASE}/telemetry", json=body)
            assert answer.status_code == 202, answer.text
            accepted += answer.json()["accepted"]
    return accepted


def prepared(service: ServiceProcess) -> dict[int, str]:
    """Two revisions to flip between; the digest of every revision."""
    with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
        client.put(BASE, json={"key": KEY}).raise_for_status()
        for temperatures in VECTORS.values():
            match = {"If-Match": client.get(BASE).headers["ETag"]}
            made = client.post(
                f"{BASE}/revisions", json={"temperatures": temperatures}, headers=match
            )
            assert made.status_code == 201, made.text
        revisions = client.get(f"{BASE}/revisions").json()["revisions"]
    return {revision["revision"]: revision["digest"] for revision in revisions}


@pytest.mark.slow
def test_r74_flipping_revisions_are_never_seen_mixed_or_backwards(url: str) -> None:
    """Two replicas with people, readers and writers at both; nobody ever sees a lock error."""
    flipped_under_load(url, FLIPS[url.partition(":")[0].partition("+")[0]], WRITER_ROWS)


def flipped_under_load(url: str, flips: int, rows: int) -> None:
    """Flip on two replicas beside readers and writers, and check what all of them saw."""
    with replicas(url) as (one, other):
        digests = prepared(one)
        bases = [one.url, other.url]
        readers = [Reader(bases[number % 2], digests) for number in range(READERS)]

        async def story() -> int:
            stop = asyncio.Event()
            tasks = [asyncio.create_task(reader.poll(stop)) for reader in readers]
            writers = [write(bases[number % 2], number, rows) for number in range(WRITERS)]
            last, *accepted = await asyncio.gather(flip(bases, flips), *writers)
            assert accepted == [rows] * WRITERS
            async with asyncio.timeout(PATIENCE):
                while any(reader.last < last for reader in readers):
                    await asyncio.sleep(0.05)
                    for task in tasks:
                        if task.done():
                            task.result()
            stop.set()
            await asyncio.gather(*tasks)
            return last

        last = asyncio.run(story())
        assert last == flips + 1
        assert {reader.last for reader in readers} == {last}
        assert set().union(*(reader.statuses for reader in readers)) <= {200, 304}
        seen: dict[int, bytes] = {}
        for reader in readers:
            for number, body in reader.bodies.items():
                assert seen.setdefault(number, body) == body, "two bodies of one publication"
        assert len(seen) > 10
        for service in (one, other):
            errors = [line for line in service.log.splitlines() if '"level": "error"' in line]
            assert errors == []
    database = Database.open(url)
    with database.read() as connection:
        assert counters(connection, "drafter").rows == WRITERS * rows
    database.close()


@pytest.mark.slow
def test_replicas_agree_on_every_variant(url: str) -> None:
    with ServiceProcess(url) as one, ServiceProcess(url) as other:
        prepared(one)
        asyncio.run(flip([one.url], 2))
        accept = ["application/json", "application/vnd.sglang.dspark-sts+json"]
        for gamma in range(1, 8):
            for media in accept:
                path = f"{BASE}/temperatures?gamma={gamma}"
                answers = [
                    httpx.get(service.url + path, headers={"Accept": media}, timeout=PATIENCE)
                    for service in (one, other)
                ]
                assert answers[0].content == answers[1].content
                assert answers[0].headers["ETag"] == answers[1].headers["ETag"]
                assert json.loads(answers[0].content)["temperatures"]
