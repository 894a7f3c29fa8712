"""Engines that send rows, and keep book of what was acknowledged, beside a service that breaks.

An engine with keys repeats what was not acknowledged, with the same key and body, as the client
does. One without keys never does, because it cannot know whether its rows are stored.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import numpy as np

from calib.formats.arrow import ipc_from_records
from calib.records import AcceptanceRecords
from monitoring.ingest import records_of
from monitoring.store.database import Database
from monitoring.store.telemetry import batches_after, counters
from tests.support.telemetry import synthetic_columns

DRAFTER = "drafter"
GAMMA = 2
CALL_SECONDS = 30.0
_POOL = 4000
_APART = 10_000_000  # each engine has steps of its own


@dataclass(frozen=True)
class Answer:
    """What the service said to a batch that it did not take."""

    status: int
    type: str
    media: str
    retry_after: str | None


@dataclass(frozen=True)
class _Batch:
    headers: dict[str, str]
    body: bytes
    steps: range


class Engine:
    """One engine and its books.

    Attributes:
        acknowledged: steps of rows that were answered 202.
        unknown: steps of rows without a key of which nobody knows.
        refusals: every other answer.
        broken: exchanges without an answer.
    """

    def __init__(self, number: int, *, keyed: bool, rows: int = 20) -> None:
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self.refusals: list[Answer] = []
        self.broken = 0
        self._name = f"engine-{number}"
        self._keyed = keyed
        self._rows = rows
        self._next = number * _APART
        self._batch: _Batch | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing waits to be sent again."""
        return self._batch is None

    def send(self, client: httpx.Client) -> bool:
        """Send the next batch, or the last one again; whether it was acknowledged."""
        batch = self._batch = self._batch or self._made()
        try:
            answer = client.post(
                f"/v1/drafters/{DRAFTER}/telemetry", content=batch.body, headers=batch.headers
            )
        except httpx.TransportError:
            self.broken += 1
        else:
            if answer.status_code == 202:
                assert answer.json()["accepted"] == len(batch.steps)
                self.acknowledged += batch.steps
                self._batch = None
                return True
            kind = answer.headers.get("Content-Type", "")
            said = answer.json().get("type", "") if "json" in kind else ""
            wait = answer.headers.get("Retry-After")
            self.refusals.append(Answer(answer.status_code, said, kind, wait))
        if not self._keyed:
            self.unknown += batch.steps
            self._batch = None
        return False

    def _made(self) -> _Batch:
        steps = range(self._next, self._next + self._rows)
        self._next = steps.stop
        chosen = np.arange(steps.start, steps.stop) % _POOL
        columns = {name: cells[chosen] for name, cells in _pool().items()}
        columns["engine"] = np.full(self._rows, self._name, dtype=object)
        columns["step"] = np.arange(steps.start, steps.stop)
        body = ipc_from_records(AcceptanceRecords.from_columns(GAMMA, columns))
        headers = {"Content-Type": "application/vnd.apache.arrow.stream"}
        if self._keyed:
            headers["Idempotency-Key"] = str(uuid.uuid4())
        return _Batch(headers, body, steps)


@contextmanager
def sending(url: str, engines: Sequence[Engine], *, pause: float = 0.005) -> Iterator[None]:
    """Let engines send, each in a thread, for as long as the block runs."""
    stop = threading.Event()
    faults: list[BaseException] = []

    def work(engine: Engine) -> None:
        try:
            with httpx.Client(base_url=url, timeout=CALL_SECONDS) as client:
                while not stop.is_set():
                    stop.wait(pause if engine.send(client) else 10 * pause)
        except BaseException as fault:
            faults.append(fault)
            raise

    threads = [threading.Thread(target=work, args=[engine]) for engine in engines]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(2 * CALL_SECONDS)
    assert faults == []


def check_books(url: str, engines: Sequence[Engine]) -> int:
    """Every acknowledged row is stored once and no row twice; the number of rows stored."""
    database = Database.open(url)
    found: Counter[int] = Counter()
    with database.read() as connection:
        after = 0
        while batches := batches_after(connection, DRAFTER, after):
            after = batches[-1].id
            for batch in batches:
                records: Any = records_of(batch.payload)
                assert len(records) == batch.rows
                found.update(records.step.tolist())
        counted = counters(connection, DRAFTER)
    database.close()
    doubled = [step for step, times in found.items() if times > 1]
    assert doubled == []
    acknowledged = {step for engine in engines for step in engine.acknowledged}
    unknown = {step for engine in engines for step in engine.unknown}
    assert acknowledged - found.keys() == set(), "acknowledged rows are lost"
    assert found.keys() - acknowledged - unknown == set(), "rows nobody sent"
    assert counted.rows == found.total()
    return found.total()


@cache
def _pool() -> dict[str, Any]:
    columns = synthetic_columns(_POOL, gamma=GAMMA, prompts=150)
    # So far off that every fit is better: the engines send the same rows, so a window has few.
    columns["confidence_logits"] *= np.float32(0.4)
    return columns
