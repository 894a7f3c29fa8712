"""The client against the real service: polled, promoted, rolled back, killed, restarted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from dspark_calib_client import CalibrationClient, Source, State, TelemetryOptions
from monitoring.ingest import records_of
from monitoring.store.database import Database
from monitoring.store.telemetry import batches_after
from tests.client.test_keys import FIELDS
from tests.client.waiting import eventually
from tests.service_process import ServiceProcess

GAMMA = 7
KEY = {**FIELDS, "gamma": GAMMA}
TEMPERATURES = [1.5, 1.4, 1.3, 1.2, 1.1, 1.0, 0.9]
PATIENCE = 180.0
START_SECONDS = 240.0  # the service imports a lot, and the machine may be busy


class Operator:
    """What a person does by hand."""

    def __init__(self, http: httpx.Client, url: str, drafter: str) -> None:
        self._http = http
        self._url = f"{url}/v1/drafters/{drafter}"
        self.drafter = drafter
        http.put(self._url, json={"key": KEY}).raise_for_status()

    def promote(self, temperatures: list[float]) -> None:
        number = self._post("/revisions", {"temperatures": temperatures})["revision"]
        self._post(f"/revisions/{number}/promote", {})

    def rollback(self) -> None:
        self._post("/rollback", {})

    def engines(self) -> dict[str, Any]:
        found = self._http.get(f"{self._url}/engines").raise_for_status().json()["engines"]
        return {engine["engine"]: engine for engine in found}

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        etag = self._http.get(self._url).raise_for_status().headers["ETag"]
        answer = self._http.post(self._url + path, json=body, headers={"If-Match": etag})
        return dict(answer.raise_for_status().json())


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The database of the service that most tests share."""
    return f"sqlite:///{tmp_path_factory.mktemp('service')}/store.db"


@pytest.fixture(scope="module")
def url(database: str) -> Iterator[str]:
    """A running service; each test has a drafter of its own."""
    with ServiceProcess(database, start_seconds=START_SECONDS) as running:
        yield running.url


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30.0) as client:
        yield client


@contextmanager
def client_of(url: str, drafter: str, **changes: Any) -> Iterator[CalibrationClient]:
    """A running client."""
    options: dict[str, Any] = {
        "engine_id": "engine-0",
        "interval": 1.0,
        "wait": 20,
        "start_delay": 0.0,
        "max_backoff": 0.5,
        "telemetry": TelemetryOptions(batch_seconds=0.1),
    }
    client = CalibrationClient(url, drafter, GAMMA, KEY, **{**options, **changes})
    client.start()
    try:
        yield client
    finally:
        client.stop(10.0)


def stored_steps(url: str, drafter: str) -> list[int]:
    """Steps of all rows in the database, in the order of their batches."""
    database = Database.open(url)
    try:
        with database.read() as connection:
            batches = batches_after(connection, drafter, 0, limit_bytes=2**30)
    finally:
        database.close()
    steps: list[int] = []
    for batch in batches:
        records = records_of(batch.payload)
        assert records.step is not None
        steps += records.step.tolist()
    return steps


@pytest.mark.slow
def test_register_poll_promote_receive_upload(url: str, http: httpx.Client, database: str) -> None:
    by_hand = Operator(http, url, "promoted")
    with client_of(url, "promoted") as client:
        assert eventually(lambda: client.current().state is State.FRESH, PATIENCE)
        first = client.current()
        assert (first.status, first.publication, first.revision) == ("identity", 1, 0)
        assert first.values == (1.0,) * GAMMA

        by_hand.promote(TEMPERATURES)
        assert eventually(lambda: client.current().publication == 2, PATIENCE)
        assert client.current().values == tuple(TEMPERATURES)
        client.report_applied(client.current())

        send_rows(client)
        assert eventually(lambda: client.metrics()["rows_delivered"] == 102, PATIENCE)
        metrics = client.metrics()
        assert (metrics["rows_accepted"], metrics["rows_rejected"]) == (100, 2)
        assert stored_steps(database, "promoted") == list(range(100))

        client.poll_now()
        on_champion = lambda: by_hand.engines()["engine-0"]["status"] == "on_champion"  # noqa: E731
        assert eventually(on_champion, PATIENCE)
        seen = by_hand.engines()["engine-0"]
        assert (seen["applied_publication"], seen["applied_revision"]) == (2, 1)
        assert seen["state"] == "fresh"

        by_hand.rollback()  # the publication grows, the numbers are the old ones
        assert eventually(lambda: client.current().publication == 3, PATIENCE)
        assert client.current().values == (1.0,) * GAMMA
        assert client.metrics()["polls_failed"] == 0
        assert client.stop(20.0)


def send_rows(client: CalibrationClient) -> None:
    """Steps 0 to 99, and two rows that the service must refuse."""
    for step in range(10):
        client.observe([0.5] * GAMMA, 7, step % 8, request="r1", step=step)
    block = {
        "confidence_logits": np.zeros((90, GAMMA), np.float32),
        "verified": np.full(90, GAMMA),
        "accepted": np.arange(90) % 8,
        "step": np.arange(10, 100),
        "request": ["r2"] * 90,
    }
    assert client.record_rows(block) == 90
    client.observe([float("nan")] + [0.5] * 6, 7, 1, request="r3", step=100)
    client.observe([0.5] * GAMMA, 3, 5, request="r3", step=101)


@pytest.mark.slow
def test_a_promotion_ends_a_held_poll(url: str, http: httpx.Client) -> None:
    """News arrives when it is published, not when the next poll is due."""
    by_hand = Operator(http, url, "held")
    with client_of(url, "held", interval=600.0, wait=60) as client:
        assert eventually(lambda: client.current().state is State.FRESH, PATIENCE)
        assert eventually(lambda: client.metrics()["polls"] == 2, PATIENCE)
        began = time.monotonic()
        by_hand.promote(TEMPERATURES)
        assert eventually(lambda: client.current().publication == 2, PATIENCE)
        assert time.monotonic() - began < 50.0  # less than the minute it may be held for


@pytest.mark.slow
def test_another_model_gets_identity_and_leaves_no_rows(
    url: str, http: httpx.Client, database: str
) -> None:
    Operator(http, url, "changed").promote(TEMPERATURES)
    with client_of(url, "changed") as client:
        assert eventually(lambda: client.current().publication == 2, PATIENCE)
        assert client.change_key({**KEY, "target_revision": "w2"})
        assert eventually(lambda: client.metrics()["key_mismatch"] == 1, PATIENCE)
        assert client.current().source is Source.IDENTITY
        assert not client.observe([0.5] * GAMMA, 7, 1, step=1)
        assert client.change_key(KEY)
        assert eventually(lambda: client.current().publication == 2, PATIENCE)
        client.observe([0.5] * GAMMA, 7, 1, step=2)
        assert client.stop(20.0)
    assert stored_steps(database, "changed") == [2]


@pytest.mark.slow
def test_a_killed_service_costs_no_row_and_no_number(http: httpx.Client, tmp_path: Path) -> None:
    """kill −9 while rows flow, twice; every row is stored once, and the engine never notices."""
    mine = f"sqlite:///{tmp_path}/store.db"
    running = ServiceProcess(mine, start_seconds=START_SECONDS)
    try:
        Operator(http, running.url, "killed").promote(TEMPERATURES)
        port = running.port
        options = TelemetryOptions(batch_seconds=0.02, batch_rows=20)
        file = tmp_path / "good.json"
        with client_of(running.url, "killed", state_file=file, telemetry=options) as client:
            assert eventually(lambda: client.current().publication == 2, PATIENCE)
            for first in (0, 100):
                for step in range(first, first + 100):
                    assert client.observe([0.5] * GAMMA, 7, 1, request="r", step=step)
                    if step == first + 60:
                        assert eventually(lambda: client.metrics()["rows_delivered"] > 0, PATIENCE)
                        running.kill()
                    assert client.current().values == tuple(TEMPERATURES)
                running = ServiceProcess(mine, port=port, start_seconds=START_SECONDS)
            assert eventually(lambda: client.metrics()["rows_delivered"] == 200, PATIENCE)
            assert eventually(lambda: client.current().state is State.FRESH, PATIENCE)
            assert client.stop(20.0)
    finally:
        running.kill()
    assert sorted(stored_steps(mine, "killed")) == list(range(200))
    assert client.metrics()["batch_retries"] >= 1
