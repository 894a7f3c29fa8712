"""What a service holds before ``kill -9`` it holds after a restart, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from calib.formats.arrow import ipc_from_records
from monitoring.store.database import Database
from monitoring.store.migrate import upgrade
from monitoring.store.telemetry import counters
from tests.api.served import Served
from tests.postgres_server import dialects, shared_server
from tests.support.service import KEY
from tests.support.telemetry import synthetic_records

DRAFTER = "d"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(params=dialects())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database that outlives its service."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/store.db"
        return
    name = "restarts"
    yield shared_server().create_database(name)
    shared_server().drop_database(name)


def send(service: Served, body: bytes, key: str) -> httpx.Response:
    return service.http.post(
        f"{service.url}/v1/drafters/{DRAFTER}/telemetry",
        content=body,
        headers={"Content-Type": ARROW, "Idempotency-Key": key},
    )


def poll(service: Served) -> httpx.Response:
    place = f"{service.url}/v1/drafters/{DRAFTER}/temperatures"
    return service.http.get(place, params={"gamma": 7}).raise_for_status()


def publish(service: Served, temperatures: list[float]) -> dict[str, Any]:
    place = f"{service.url}/v1/drafters/{DRAFTER}"
    tag = service.http.get(place).headers["ETag"]
    made = service.http.post(
        f"{place}/revisions", json={"temperatures": temperatures}, headers={"If-Match": tag}
    ).raise_for_status()
    number = made.json()["revision"]
    promoted = service.http.post(f"{place}/revisions/{number}/promote", headers={"If-Match": tag})
    found: dict[str, Any] = promoted.raise_for_status().json()
    return found


def stored_rows(url: str) -> int:
    database = Database.open(url)
    with database.read() as connection:
        rows = counters(connection, DRAFTER).stored_rows
    database.close()
    return rows


@pytest.mark.slow
def test_r73_kill_after_300_rows_and_one_publication(url: str, tmp_path: Path) -> None:
    body = ipc_from_records(synthetic_records(300))
    with Served("--database-url", url, folder=tmp_path) as service:
        service.listening()
        service.http.put(
            f"{service.url}/v1/drafters/{DRAFTER}", json={"key": KEY}
        ).raise_for_status()
        answer = send(service, body, "batch-1")
        assert (answer.status_code, answer.json()["accepted"]) == (202, 300)
        published = publish(service, [1.5, 1.4, 1.3, 1.2, 1.1, 1.0, 0.9])
        before = poll(service)
        service.kill_all()
    with Served("--database-url", url, folder=tmp_path) as service:
        service.listening()
        after = poll(service)
        assert after.content == before.content
        assert after.headers["ETag"] == before.headers["ETag"]
        assert after.json()["publication"] == published["publication"] == 2
        assert after.json()["digest"] == before.json()["digest"]
        assert stored_rows(url) == 300
        again = send(service, body, "batch-1")
        assert (again.status_code, again.content) == (202, answer.content)
        assert stored_rows(url) == 300
        assert service.stop() == 0


@pytest.mark.slow
def test_a_recalibration_survives_the_death_of_everything(url: str, tmp_path: Path) -> None:
    """Ordered before the kill, done after the restart, once."""
    database = Database.open(url)
    upgrade(database)
    database.close()
    with Served("--database-url", url, "--role", "api", folder=tmp_path) as service:
        service.listening()
        place = f"{service.url}/v1/drafters/{DRAFTER}"
        service.http.put(place, json={"key": KEY}).raise_for_status()
        send(service, ipc_from_records(synthetic_records(6000)), "batch-1").raise_for_status()
        ordered = service.http.post(f"{place}/recalibrations", json={"minimum_rows": 100})
        assert ordered.status_code == 202
        service.kill_all()
    with Served("--database-url", url, folder=tmp_path) as service:
        service.listening()
        found = service.job(DRAFTER, minimum_rows=100)  # not doubled: the same job, or a second one
        first = service.http.get(f"{service.url}{ordered.headers['Location']}").json()
        assert first["status"] == "succeeded"
        assert found["status"] == "succeeded"
        drafter = service.http.get(f"{service.url}/v1/drafters/{DRAFTER}").json()
        assert drafter["aliases"]["challenger"] == found["result"]["revision"]
        assert service.stop() == 0
