"""What a telemetry request becomes before it is stored; runs in the queue's parser threads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from api.idempotency import fingerprint
from api.problems import FieldError, ProblemError
from api.request_bodies import BodyForm, decompressed
from calib.records import AcceptanceRecords
from monitoring.ingest import (
    BatchTooLargeError,
    InvalidBatchError,
    ParsedBatch,
    UnreadableBatchError,
    parse_arrow_batch,
    parse_json_batch,
    payload_of,
)
from monitoring.store.telemetry import BatchToStore, IdempotencyKey, StoredAnswer, find_answer

if TYPE_CHECKING:
    from api.pending_bytes import Reservation
    from monitoring.store.database import Database
    from monitoring.store.drafters import Drafter

__all__ = [
    "ARROW",
    "JSON",
    "BatchLimits",
    "PreparedBatch",
    "RefusedBatchError",
    "SentBatch",
    "answer_of",
    "prepare_batch",
]

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A telemetry request, without its body.

    Attributes:
        drafter: whose rows.
        form: how the body is written.
        engine: name for rows that name no engine.
        token: id of the sender's token.
        key: the request's Idempotency-Key.
    """

    drafter: Drafter
    form: BodyForm
    engine: str | None
    token: str
    key: str | None


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may become.

    Attributes:
        rows: most rows.
        bytes: most bytes after decompression.
    """

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch that only has to be stored.

    Attributes:
        batch: its rows and the answer to its request.
        rejected: rows that were refused.
        duplicates: rows that were dropped.
    """

    batch: BatchToStore
    rejected: int
    duplicates: int

    @property
    def digest(self) -> str:
        """What its request is known by; empty without an Idempotency-Key."""
        key = self.batch.idempotency
        return "" if key is None else key.body_sha256


class RefusedBatchError(Exception):
    """A batch of which no row can be stored.

    Attributes:
        problem: what to answer.
        rejected: rows that were refused, as far as they could be counted.
    """

    def __init__(self, problem: ProblemError, rejected: int) -> None:
        self.problem = problem
        self.rejected = rejected
        super().__init__(str(problem))


def prepare_batch(
    database: Database, sent: SentBatch, body: bytes, limits: BatchLimits, held: Reservation
) -> PreparedBatch | StoredAnswer:
    """The batch of a request, or the answer that this very request got before.

    Args:
        database: where answers are kept.
        sent: the request.
        body: as received.
        limits: how large it may become.
        held: where decompressed bytes are reserved.

    Raises:
        RefusedBatchError: no row can be stored.
        ProblemError: 400 and 413 of decompression, 422 when the key belongs to another request,
            429 when there is no room for what the body unfolds to.
        StoreError: the database cannot be asked for the answer.
    """
    plain = decompressed(body, sent.form.coding, limits.bytes, held.grow)
    idempotency = None
    if sent.key is not None:
        digest = _digest(sent, plain)
        stored = stored_answer(database, sent, digest)
        if stored is not None:
            return stored
        idempotency = IdempotencyKey(sent.token, sent.key, digest)
    parsed = _parsed(sent, plain, limits)
    batch = BatchToStore(
        drafter=sent.drafter.name,
        engine=sent.engine or _only_engine(parsed.records),
        payload=payload_of(parsed.records),
        rows=len(parsed.records),
        excluded=parsed.excluded,
        received_at=database.clock(),
        idempotency=idempotency,
        answer=json.dumps(answer_of(parsed), allow_nan=False).encode("ascii"),
    )
    return PreparedBatch(batch, parsed.rejected_total, parsed.duplicates)


def stored_answer(database: Database, sent: SentBatch, digest: str) -> StoredAnswer | None:
    """The answer that was given to the request with this key, None when there was none.

    Raises:
        ProblemError: 422, the key belongs to a request with another body.
        StoreError: the database cannot be asked.
    """
    if sent.key is None:
        return None
    with database.read() as connection:
        stored = find_answer(connection, sent.drafter.name, sent.token, sent.key)
    if stored is not None and stored.body_sha256 != digest:
        raise ProblemError(
            "idempotency-key-reused",
            "This Idempotency-Key was used for another body within 24 hours.",
            errors=[FieldError("header:idempotency-key", "use a new key for every batch")],
        )
    return stored


def answer_of(parsed: ParsedBatch) -> dict[str, Any]:
    """What the sender is told, as plain JSON values; ``accepted`` includes excluded rows."""
    return {
        "accepted": len(parsed.records),
        "duplicates": parsed.duplicates,
        "excluded": parsed.excluded,
        "rejected": [asdict(row) for row in parsed.rejected],
        "rejected_total": parsed.rejected_total,
        "warnings": [str(warning) for warning in parsed.warnings],
    }


def _digest(sent: SentBatch, plain: bytes) -> str:
    """What makes two requests the same: rows and what they are taken for, not their coding."""
    return fingerprint(sent.form.media_type.encode(), (sent.engine or "").encode(), plain)


def _parsed(sent: SentBatch, plain: bytes, limits: BatchLimits) -> ParsedBatch:
    key = sent.drafter.key
    options: dict[str, Any] = {
        "anchor_included": key.slot_convention == "anchor_included",
        "engine": sent.engine,
        "max_rows": limits.rows,
    }
    try:
        if sent.form.media_type == ARROW:
            parsed = parse_arrow_batch(plain, sent.drafter.gamma, max_bytes=limits.bytes, **options)
        else:
            parsed = parse_json_batch(plain, sent.drafter.gamma, **options)
    except InvalidBatchError as error:
        raise RefusedBatchError(_problem(error), error.rows) from error
    if not len(parsed.records):
        detail = f"None of {parsed.rejected_total} rows could be taken; nothing was stored."
        problem = ProblemError("no-valid-rows", detail, **answer_of(parsed))
        raise RefusedBatchError(problem, parsed.rejected_total)
    return parsed


def _problem(error: InvalidBatchError) -> ProblemError:
    faults = [FieldError(f"#/{error.field}", str(error))]
    match error:
        case UnreadableBatchError():
            return ProblemError("unreadable-request", str(error))
        case BatchTooLargeError():
            if error.field == "buffers":
                return ProblemError("content-too-large", str(error), limit_bytes=error.limit)
            return ProblemError("content-too-large", str(error), limit_rows=error.limit)
    return ProblemError("invalid-request", str(error), errors=faults, rejected_total=error.rows)


def _only_engine(records: AcceptanceRecords) -> str | None:
    """The engine of all rows, where they agree."""
    engines = records.coded("engine")
    if engines is None or (engines.codes != engines.codes[0]).any():
        return None
    named = engines.distinct()
    return named[0] if named else None
