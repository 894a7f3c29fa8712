"""A registered drafter with stored telemetry, and jobs leased by hand, for the worker's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from calib.calibration import CalibrationKey
from calib.prompt_split import DEFAULT_SALT, evaluation_keys
from calib.records import AcceptanceRecords
from monitoring.ingest import payload_of
from monitoring.published_document import publication_document
from monitoring.store.database import Database
from monitoring.store.drafters import Drafter, register
from monitoring.store.jobs import Job, enqueue, lease_next
from monitoring.store.publications import Publication, publish
from monitoring.store.revisions import Revision
from monitoring.store.telemetry import BatchToStore, store_batches

DRAFTER = "drafter"


def key(gamma: int) -> CalibrationKey:
    return CalibrationKey(
        target_model="target",
        target_revision="1",
        target_quantization="none",
        draft_model="draft",
        draft_revision="1",
        draft_quantization="none",
        gamma=gamma,
        slot_convention="anchor_excluded",
    )


def document(number: int, revision: Revision, drafter: Drafter, published_at: float) -> bytes:
    return publication_document(
        drafter, revision, publication=number, published_at=published_at, valid_until=None
    )


def registered(database: Database, gamma: int, name: str = DRAFTER) -> str:
    database.run(
        lambda connection: register(connection, name, key(gamma), actor="test", document=document)
    )
    return name


def promoted(database: Database, revision: int, drafter: str = DRAFTER) -> Publication:
    return database.run(
        lambda connection: publish(
            connection,
            drafter,
            revision,
            expected_version=None,
            actor="test",
            reason="test",
            document=document,
        )
    )


def stored(
    database: Database, records: AcceptanceRecords, *, batches: int = 1, drafter: str = DRAFTER
) -> list[int]:
    """Ids of the batches, stored as the ingest stores them."""
    parts = [records.select(rows) for rows in np.array_split(np.arange(len(records)), batches)]
    waiting = [
        BatchToStore(
            drafter=drafter,
            engine=None,
            payload=payload_of(part),
            rows=len(part),
            excluded=len(part) - int(part.usable().sum()),
            received_at=database.clock(),
            idempotency=None,
            answer=b"{}",
        )
        for part in parts
    ]
    return database.run(lambda connection: store_batches(connection, waiting))


def ordered(
    database: Database, kind: Any = "recalibration", drafter: str = DRAFTER, **options: Any
) -> Job:
    """A queued job."""
    return database.run(
        lambda connection: enqueue(connection, drafter, kind, options, actor="test")
    )


def leased(database: Database, owner: str = "test", seconds: float = 60.0, **options: Any) -> Job:
    """A new recalibration, leased."""
    ordered(database, **options)
    job = database.run(lambda c: lease_next(c, database, owner, seconds=seconds))
    if job is None:
        raise LookupError("no job to lease")
    return job


def read(database: Database, question: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a repository function answers in a snapshot."""
    with database.read() as connection:
        return question(connection, *arguments, **named)


def prompts_of(*, judged: bool, count: int) -> list[str]:
    """Prompts that the default split puts on one side."""
    found: list[str] = []
    index = 0
    while len(found) < count:
        prompt = f"prompt {index}"
        index += 1
        if bool(evaluation_keys({prompt}, 0.5, DEFAULT_SALT)) is judged:
            found.append(prompt)
    return found


def worse_when_fitted() -> AcceptanceRecords:
    """γ = 1: 60 rows to fit on ask for T = 3.54, 1,000 rows to judge on want none of it.

    Fit: logit 3, 42 of 60 accepted, so σ(3/T) = .7. Judged: logit .775 and 635 of 1,000 accepted,
    so the error is σ(.775) − .635 = .050 as it is and .635 − σ(.775/3.54) = .080 with that T.
    """
    fit, judged = prompts_of(judged=False, count=6), prompts_of(judged=True, count=10)
    return AcceptanceRecords.from_columns(
        1,
        {
            "confidence_logits": np.r_[np.full(60, 3.0), np.full(1000, 0.775)][:, None].astype(
                np.float32
            ),
            "verified": np.ones(1060, dtype=np.uint8),
            "accepted": np.r_[np.arange(60) % 10 < 7, np.arange(1000) % 200 < 127].astype(np.uint8),
            "prompt": np.array(
                [fit[row // 10] for row in range(60)] + [judged[row // 100] for row in range(1000)],
                dtype=object,
            ),
        },
    )
