"""``kill -9`` of service and worker at random moments of ingest, promotion and fit together."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from calib.calibration import Calibration
from monitoring.store.database import Database
from monitoring.store.jobs import Job, list_jobs
from monitoring.store.publications import current_publication, get_publication, publication_numbers
from monitoring.store.revisions import Revision, list_revisions
from tests.api.engines_at_work import DRAFTER, GAMMA, Engine, check_books, sending
from tests.api.killed_processes import free_port, service, worker
from tests.postgres_server import dialects, shared_server
from tests.support.service import KEY

ROUNDS = {"sqlite": 34, "postgresql": 16}
SEED = "DSPARK_CALIB_TEST_SEED"  # an environment variable: the draws of a run that failed
CALL_SECONDS = 30.0
END_SECONDS = 600.0
MOMENT_SECONDS = 8.0
PLACE = f"/v1/drafters/{DRAFTER}"


@pytest.fixture(params=dialects())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/service.db"
        return
    yield shared_server().create_database("kills")
    shared_server().drop_database("kills")


@dataclass
class Seen:
    """What people and pollers were told; none of it may be taken back.

    Attributes:
        bodies: of each publication that a poll returned.
        promoted: publications whose promotion was acknowledged.
        made: revisions whose making was acknowledged.
        newest: the highest publication so far, by whatever way it was seen.
        faults: what must not be.
    """

    bodies: dict[int, bytes] = field(default_factory=dict)
    promoted: list[int] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    newest: int = 0
    faults: list[str] = field(default_factory=list)


@contextmanager
def people(address: str, seen: Seen, draw: random.Random) -> Iterator[None]:
    """Somebody who makes, promotes and rolls back, and an engine that polls."""
    stop = threading.Event()

    def repeat(step: Any) -> None:
        with httpx.Client(base_url=address, timeout=CALL_SECONDS) as client:
            while not stop.wait(0.01):
                try:
                    step(client)
                except httpx.TransportError:
                    stop.wait(0.05)  # it is dead, or dies while it answers

    def operate(client: httpx.Client) -> None:
        tag = {"If-Match": client.get(PLACE).headers.get("ETag", '"none"')}
        if draw.random() < 0.2:
            told = client.post(f"{PLACE}/rollback", headers=tag)
        else:
            # Bad ones, so that a fit has something to improve on.
            body = {"temperatures": [round(draw.uniform(3.0, 5.0), 3)] * GAMMA}
            made = client.post(f"{PLACE}/revisions", json=body, headers=tag)
            if made.status_code != 201:
                return
            seen.made.append(made.json()["revision"])
            told = client.post(f"{PLACE}/revisions/{seen.made[-1]}/promote", headers=tag)
        if told.status_code == 200:
            seen.promoted.append(told.json()["publication"])

    def poll(client: httpx.Client) -> None:
        before = max([seen.newest, *seen.promoted[-1:]])
        answer = client.get(f"{PLACE}/temperatures", params={"gamma": GAMMA})
        if answer.status_code != 200:
            return
        number = answer.json()["publication"]
        if number < before:
            seen.faults.append(f"publication {number} after {before}")
        if seen.bodies.setdefault(number, answer.content) != answer.content:
            seen.faults.append(f"two bodies of publication {number}")
        if len(set(answer.json()["temperatures"])) != 1 and answer.json()["method"] == "manual":
            seen.faults.append(f"publication {number} is mixed")
        seen.newest = number

    threads = [threading.Thread(target=repeat, args=[step]) for step in (operate, poll)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(2 * CALL_SECONDS)


def one_round(
    url: str, port: int, number: int, engines: list[Engine], seen: Seen, draw: random.Random
) -> None:
    """Start, let everybody work, and kill at a random moment, in a random order."""
    address = f"http://127.0.0.1:{port}"
    with service(url, port) as api, worker(url, f"worker-{number}") as (working, fitting):
        if number % 2 == 0:  # what a kill leaves behind is done in the next rounds
            httpx.post(
                f"{address}{PLACE}/recalibrations",
                json={"rows": 2000 + number, "minimum_rows": 100},
                timeout=CALL_SECONDS,
            ).raise_for_status()
        victims = [api, working]
        draw.shuffle(victims)
        with people(address, seen, draw), sending(address, engines):
            _moment(engines, fitting, draw)
            victims[0].kill()
            time.sleep(draw.choice([0.0, draw.uniform(0.0, 0.2)]))
            victims[1].kill()


def _moment(engines: list[Engine], fitting: Any, draw: random.Random) -> None:
    """Wait for a random thing to happen and a little more: as good on slow machines as on fast."""
    ends = time.monotonic() + MOMENT_SECONDS
    if draw.random() < 0.4:
        fitting.wait(MOMENT_SECONDS)  # a fit is made and not yet stored
    else:
        batches = _acknowledged(engines) + draw.randint(0, 40)
        while _acknowledged(engines) < batches and time.monotonic() < ends:
            time.sleep(0.002)
    time.sleep(draw.uniform(0.0, 0.08))


def _acknowledged(engines: list[Engine]) -> int:
    return sum(len(engine.acknowledged) for engine in engines) // 20


def prepare(url: str, port: int, engines: list[Engine]) -> None:
    address = f"http://127.0.0.1:{port}"
    with service(url, port), httpx.Client(base_url=address, timeout=CALL_SECONDS) as client:
        client.put(PLACE, json={"key": {**KEY, "gamma": GAMMA}}).raise_for_status()
        assert engines[0].send(client)


def finish(url: str, port: int, engines: list[Engine]) -> None:
    """A last start: what was not acknowledged is sent again, and all jobs come to their end."""
    address = f"http://127.0.0.1:{port}"
    ends = time.monotonic() + END_SECONDS
    with service(url, port), worker(url, "last"):
        with httpx.Client(base_url=address, timeout=CALL_SECONDS) as client:
            for engine in engines:
                while not engine.settled and time.monotonic() < ends:
                    engine.send(client)
        assert all(engine.settled for engine in engines)
        database = Database.open(url)
        while time.monotonic() < ends and not _all_over(database):
            time.sleep(0.1)
        assert _all_over(database)
        database.close()


def _jobs(database: Database) -> list[Job]:
    with database.read() as connection:
        return list_jobs(connection, limit=1000)


def _all_over(database: Database) -> bool:
    return all(job.status not in ("queued", "running") for job in _jobs(database))


def check_store(url: str, seen: Seen) -> int:
    """Whole revisions and publications in unbroken order; the number of fits that came through."""
    database = Database.open(url)
    jobs = _jobs(database)
    with database.read() as connection:
        if database.dialect == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        newest = current_publication(connection, DRAFTER)
        published = [
            get_publication(connection, DRAFTER, number) for number in range(1, newest.number + 1)
        ]
        revisions = list_revisions(connection, DRAFTER, limit=10**6)  # each checks its digest
    database.close()
    for number, body in seen.bodies.items():
        assert published[number - 1].document == body
    assert len(set(seen.promoted)) == len(seen.promoted)
    assert newest.number >= max([seen.newest, *seen.promoted])
    check_revisions(revisions, jobs, seen)
    fitted = [job for job in jobs if job.kind == "recalibration" and job.status == "succeeded"]
    return len(fitted)


def check_revisions(revisions: list[Revision], jobs: list[Job], seen: Seen) -> None:
    """Numbers without a gap, each whole, each made once: by hand or by one job."""
    numbers = sorted(revision.number for revision in revisions)
    assert numbers == list(range(len(numbers)))
    assert len(set(seen.made)) == len(seen.made)
    assert set(seen.made) <= set(numbers)
    results = {
        job.id: job.result["revision"]
        for job in jobs
        if job.kind == "recalibration" and job.status == "succeeded" and job.result
    }
    fitted = [
        (revision.provenance["job"], revision.number)
        for revision in revisions
        if "job" in revision.provenance
    ]
    assert sorted(fitted) == sorted(results.items()), "a fit stored without its job, or twice"
    for revision in revisions:
        assert Calibration.from_json(revision.calibration.to_json()) == revision.calibration


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_doubled_or_torn(url: str) -> None:
    """Fifty rounds over both databases, each on what the one before left behind."""
    seed = int(os.environ.get(SEED, random.SystemRandom().randrange(10**6)))
    sys.stdout.write(f"{SEED}={seed}\n")
    draw = random.Random(seed)
    port = free_port()
    engines = [
        Engine(0, keyed=True, rows=4000),
        *(Engine(number, keyed=number < 3) for number in (1, 2, 3)),
    ]
    seen = Seen()
    prepare(url, port, engines)
    database = Database.open(url)
    for number in range(ROUNDS[database.dialect]):
        one_round(url, port, number, engines[1:], seen, draw)
        assert seen.faults == [], f"round {number} of seed {seed}"
        with database.read() as connection:
            newest = publication_numbers(connection)[DRAFTER]
        assert newest >= max([seen.newest, *seen.promoted]), f"round {number} of seed {seed}"
        seen.newest = newest
    database.close()
    finish(url, port, engines)
    stored = check_books(url, engines)
    fits = check_store(url, seen)
    # The story was about something.
    assert stored > 4000 + 20 * ROUNDS[database.dialect]
    assert len(seen.promoted) > ROUNDS[database.dialect]
    assert fits >= 2
    assert sum(engine.broken for engine in engines) > ROUNDS[database.dialect] // 4
