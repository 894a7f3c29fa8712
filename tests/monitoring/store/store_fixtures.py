"""What tests of the store share: keys, documents, batches and a clock that stands still."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from calib.calibration import Calibration
from calib.calibration_key import CalibrationKey
from monitoring.store import drafters
from monitoring.store.database import Database
from monitoring.store.drafter_rows import Drafter
from monitoring.store.revisions import Revision
from monitoring.store.telemetry import BatchToStore, IdempotencyKey
from tests.postgres_server import dialects

# Tests of what only one of the databases has.
only_sqlite, only_postgresql = (
    pytest.mark.parametrize("dialect", [name] if name in dialects() else [], indirect=True)
    for name in ("sqlite", "postgresql")
)

START = 1_800_000_000.0

KEY = CalibrationKey(
    target_model="example/target",
    target_revision="main",
    target_quantization="none",
    draft_model="example/draft",
    draft_revision="main",
    draft_quantization="none",
    gamma=3,
    slot_convention="anchor_excluded",
)
OTHER_KEY = replace(KEY, draft_revision="next")


class ManualClock:
    """A wall clock that moves when a test says so."""

    def __init__(self, seconds: float = START) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def document(number: int, revision: Revision, drafter: Drafter, published_at: float) -> bytes:
    """Bytes that name all they were made from."""
    temperatures = ",".join(map(str, revision.calibration.temperatures))
    named = (drafter.name, drafter.version, number, revision.number, temperatures, published_at)
    return ";".join(map(str, named)).encode()


def register(connection: Connection, name: str = "code", key: CalibrationKey = KEY) -> Drafter:
    return drafters.register(connection, name, key, actor="tests", document=document)[0]


def registered(database: Database, name: str = "code", key: CalibrationKey = KEY) -> Drafter:
    return database.run(lambda connection: register(connection, name, key))


def temperatures(*values: float) -> Calibration:
    return Calibration.from_temperatures(values, gamma=len(values))


def batch(drafter: str = "code", **changes: Any) -> BatchToStore:
    """A batch of two rows and eight bytes; ``key=`` gives it an idempotency key."""
    key = changes.pop("key", None)
    values: dict[str, Any] = {
        "engine": "engine-1",
        "payload": b"\x00payload",
        "rows": 2,
        "excluded": 0,
        "received_at": START,
        "idempotency": None if key is None else idempotency(key),
        "answer": b'{"accepted":2}',
    }
    return BatchToStore(drafter=drafter, **(values | changes))


def idempotency(key: str, token: str = "token") -> IdempotencyKey:
    return IdempotencyKey(token, key, hashlib.sha256(key.encode()).hexdigest())
