"""The database fails beneath a running service: clear answers, then recovery without a restart."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import event
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from monitoring.store.database import Database
from monitoring.store.jobs import lease_next
from tests.api.engines_at_work import DRAFTER, GAMMA, Engine, check_books, sending
from tests.postgres_server import PostgresServer, dialects
from tests.service_process import ServiceProcess
from tests.support.service import BASE_URL, KEY, Service, empty_database

PLACE = f"/v1/drafters/{DRAFTER}"
PATIENCE = 120.0
ROW = {"confidence_logits": [1.5] * 7, "verified": 7, "accepted": 3}
DAY = 86_400.0


@contextmanager
def service_on(database: Database) -> Iterator[Service]:
    """The application on a database with a clock, a lock time-out or a limit of the test's."""
    app: FastAPI = create_app(Settings(database_url=database.url), database)
    with TestClient(app, base_url=BASE_URL, raise_server_exceptions=False) as client:
        service = Service(app, client)
        assert service.register(DRAFTER).status_code == 201
        yield service


def send(service: Service, rows: int = 20, key: str | None = None, **changes: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"gamma": 7, "rows": [{**ROW, **changes}] * rows}
    return service.client.post(f"{PLACE}/telemetry", json=body, headers=headers)


def kind(answer: Any) -> tuple[int, str]:
    """Status and problem of an answer, which must be a problem."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


def stored_rows(service: Service) -> int:
    """Rows in the database, as the drafter's own view counts them."""
    from monitoring.store.telemetry import counters

    with service.database.read() as connection:
        return counters(connection, DRAFTER).rows


def test_a_full_disk_is_507_and_over_without_a_restart(tmp_path: Path) -> None:
    """A limit on pages stands for the disk."""
    database = Database.open(empty_database(tmp_path))
    limit = {"pages": 2**30}

    def narrow(connection: Any) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={limit['pages']}")

    event.listen(database.engine, "begin", narrow, insert=True)
    with service_on(database) as service:
        before = service.poll(DRAFTER)
        assert send(service, key="first").status_code == 202
        limit["pages"] = 1  # SQLite takes the present size instead
        big = [f"{number:064x}" for number in range(4000)]  # does not compress away
        rows = [{**ROW, "request": name} for name in big]
        refused = service.client.post(
            f"{PLACE}/telemetry",
            json={"gamma": 7, "rows": rows},
            headers={"Idempotency-Key": "big"},
        )
        assert kind(refused) == (507, "store-full")
        assert "retention" in refused.json()["detail"]
        # Reading goes on, from memory and from the database.
        assert service.poll(DRAFTER).content == before.content
        assert service.client.get(PLACE).status_code == 200
        assert stored_rows(service) == 20
        limit["pages"] = 2**30
        again = service.client.post(
            f"{PLACE}/telemetry",
            json={"gamma": 7, "rows": rows},
            headers={"Idempotency-Key": "big"},
        )
        assert (again.status_code, again.json()["accepted"]) == (202, 4000)
        assert stored_rows(service) == 4020
        assert service.client.get("/readyz").status_code == 200
    database.close()


def test_a_locked_database_is_503_and_over_without_a_restart(tmp_path: Path) -> None:
    database = Database.open(empty_database(tmp_path), busy_seconds=0.05)
    with service_on(database) as service:
        before = service.poll(DRAFTER)
        tag = {"If-Match": service.etag(DRAFTER)}
        holder = sqlite3.connect(tmp_path / "service.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        refused = send(service, key="first")
        made = service.client.post(
            f"{PLACE}/revisions", json={"temperatures": [1.5] * 7}, headers=tag
        )
        for answer in (refused, made):
            assert kind(answer) == (503, "store-busy")
            assert int(answer.headers["Retry-After"]) >= 1
        assert service.poll(DRAFTER).content == before.content
        assert service.client.get(PLACE).status_code == 200
        holder.execute("ROLLBACK")
        holder.close()
        assert send(service, key="first").status_code == 202
        assert service.publish([1.5] * 7, DRAFTER)["publication"] == 2
        assert stored_rows(service) == 20
    database.close()


def test_a_clock_set_back_a_day_changes_nothing_that_counts(tmp_path: Path) -> None:
    """Publications, replays and leases go on as if the clock had not moved."""
    now = [1_800_000_000.0]
    database = Database.open(empty_database(tmp_path), clock=lambda: now[0])
    with service_on(database) as service:
        assert send(service, key="first").status_code == 202
        assert service.publish([1.5] * 7, DRAFTER)["publication"] == 2
        before = service.poll(DRAFTER)
        ordered = service.client.post(f"{PLACE}/recalibrations", json={})
        assert ordered.status_code == 202
        held = database.run(lambda c: lease_next(c, database, "one", seconds=30.0))
        assert held is not None

        now[0] -= DAY
        assert service.poll(DRAFTER).content == before.content
        replayed = send(service, key="first")
        assert (replayed.status_code, replayed.headers["Idempotency-Replayed"]) == (202, "true")
        assert send(service, key="second").status_code == 202
        assert stored_rows(service) == 40
        assert service.publish([1.6] * 7, DRAFTER)["publication"] == 3
        assert service.poll(DRAFTER).json()["temperatures"] == [1.6] * 7
        # The lease is neither over nor stretched by a day.
        assert database.run(lambda c: lease_next(c, database, "two", seconds=30.0)) is None
        now[0] += DAY + 31.0
        taken = database.run(lambda c: lease_next(c, database, "two", seconds=30.0))
        assert taken is not None
        assert (taken.id, taken.fencing) == (held.id, held.fencing + 1)
        assert service.client.get("/readyz").status_code == 200
    database.close()


def eventually(met: Callable[[], bool]) -> bool:
    ends = time.monotonic() + PATIENCE
    while not met():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A cluster of its own: it is stopped while others may use the shared one."""
    if "postgresql" not in dialects():
        pytest.skip("this run leaves PostgreSQL out")
    with PostgresServer.created() as created:
        yield created


@pytest.mark.slow
def test_postgresql_restarts_under_load(server: PostgresServer) -> None:
    """Crash, orderly restart, and an outage in which everything is asked for."""
    url = server.create_database("service")
    engines = [Engine(number, keyed=number != 2) for number in range(3)]
    with ServiceProcess(url) as service:
        with httpx.Client(base_url=service.url, timeout=PATIENCE) as client:
            client.put(PLACE, json={"key": {**KEY, "gamma": GAMMA}}).raise_for_status()
            before = client.get(f"{PLACE}/temperatures", params={"gamma": GAMMA})
            process = service.process.pid

            def more() -> bool:
                """Whether rows of every engine are acknowledged after this moment."""
                marks = [len(engine.acknowledged) for engine in engines]
                return eventually(
                    lambda: all(
                        len(engine.acknowledged) > mark
                        for engine, mark in zip(engines, marks, strict=True)
                    )
                )

            with sending(service.url, engines):
                assert more()
                server.restart(immediately=True)
                assert more()
                server.restart()
                assert more()
                server.stop(immediately=True)
                outage(client, before.content, engines)
                server.start()
                assert more()
                assert eventually(lambda: client.get("/readyz").status_code == 200)
                assert client.get(PLACE).status_code == 200
            for engine in engines:
                assert eventually(lambda engine=engine: engine.settled or engine.send(client))
        assert service.process.poll() is None
        assert service.process.pid == process
    check_refusals(engines)
    check_books(url, engines)


def outage(client: httpx.Client, body: bytes, engines: list[Engine]) -> None:
    """While the database is away: engines keep their numbers, everything else is told to wait."""
    refused = [len(engine.refusals) for engine in engines]
    assert eventually(
        lambda: all(
            len(engine.refusals) > before for engine, before in zip(engines, refused, strict=True)
        )
    )
    poll = client.get(f"{PLACE}/temperatures", params={"gamma": GAMMA})
    assert (poll.status_code, poll.content) == (200, body)
    for answer in (client.get(PLACE), client.get(f"{PLACE}/revisions")):
        assert kind(answer) == (503, "store-unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
    assert eventually(lambda: client.get("/readyz").status_code == 503)
    assert client.get("/healthz").status_code == 200


def check_refusals(engines: list[Engine]) -> None:
    """Every exchange had an answer, and each refusal says when to try again."""
    assert [engine.broken for engine in engines] == [0] * len(engines)
    refusals = {refusal for engine in engines for refusal in engine.refusals}
    assert refusals
    for refusal in refusals:
        assert refusal.status == 503, refusal
        assert refusal.media == "application/problem+json"
        assert refusal.type.startswith("/problems/store-")
        assert int(refusal.retry_after or 0) >= 1
