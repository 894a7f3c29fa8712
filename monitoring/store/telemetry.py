"""Stored telemetry: batches in the order they were committed, each key of a sender once.

Batches of one drafter become visible in the order of their ids: the row of its counters is locked
before an id is drawn. So a reader that remembers the last id it saw misses nothing, on PostgreSQL
with several replicas too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update
from sqlalchemy.sql.dml import ReturningInsert

from monitoring.store import tables
from monitoring.store.database import current_time
from monitoring.store.errors import ConflictError, NotFoundError
from monitoring.store.fields import checked_identifier, clamped, is_slug
from monitoring.store.upserts import insert_for

__all__ = [
    "ANSWER_SECONDS",
    "Batch",
    "BatchToStore",
    "IdempotencyKey",
    "StoredAnswer",
    "TelemetryCounters",
    "batches_after",
    "count_rejects",
    "counters",
    "find_answer",
    "newest_batches",
    "store_batches",
]

ANSWER_SECONDS: Final = 24 * 3600.0
_LIMIT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class IdempotencyKey:
    """What makes a repeated request known.

    Attributes:
        token: id of the sender's token; ``"anonymous"`` without one.
        key: the sender's key.
        body_sha256: digest of the body, to tell a repeat from another request.
    """

    token: str
    key: str
    body_sha256: str


@dataclass(frozen=True)
class StoredAnswer:
    """The answer to a request that was stored.

    Attributes:
        body_sha256: digest of the request's body.
        answer: bytes of the answer.
        created_at: seconds since the epoch.
    """

    body_sha256: str
    answer: bytes
    created_at: float


@dataclass(frozen=True)
class BatchToStore:
    """A validated batch and the answer to its request.

    Attributes:
        drafter: name of the drafter.
        engine: id of the engine, or None.
        payload: the rows, columnar and compressed.
        rows: how many there are.
        excluded: how many of them stay out of fits and monitors.
        received_at: seconds since the epoch.
        idempotency: None when the sender gave no key.
        answer: bytes of the answer, kept for repeats.
    """

    drafter: str
    engine: str | None
    payload: bytes
    rows: int
    excluded: int
    received_at: float
    idempotency: IdempotencyKey | None
    answer: bytes


@dataclass(frozen=True)
class Batch:
    """A stored batch.

    Attributes:
        id: grows with every batch; batches of a drafter appear in this order.
        drafter: name of the drafter.
        engine: id of the engine, or None.
        received_at: seconds since the epoch.
        rows: how many rows there are.
        payload: the rows, columnar and compressed.
    """

    id: int
    drafter: str
    engine: str | None
    received_at: float
    rows: int
    payload: bytes


@dataclass(frozen=True)
class TelemetryCounters:
    """Totals of a drafter since its registration; retention does not lower the first seven.

    Attributes:
        rows: rows stored, excluded ones included.
        batches: batches stored.
        bytes: size of their payloads.
        excluded: rows that stay out of fits and monitors.
        rejected: rows refused.
        duplicates: rows dropped as seen before.
        last_received_at: time of the newest batch, or None.
        stored_rows: rows that retention has left.
        stored_bytes: size of the payloads that retention has left.
    """

    rows: int
    batches: int
    bytes: int
    excluded: int
    rejected: int
    duplicates: int
    last_received_at: float | None
    stored_rows: int
    stored_bytes: int


def store_batches(connection: Connection, batches: Sequence[BatchToStore]) -> list[int]:
    """Ids of the batches, in the order given. All are stored or, on any error, none.

    Raises:
        NotFoundError: a batch names a drafter that does not exist.
        ConflictError: a batch's key was used within 24 hours, by this or another process; its
            ``identifier`` is the key.
    """
    by_drafter: dict[str, list[BatchToStore]] = defaultdict(list)
    for batch in batches:
        by_drafter[batch.drafter].append(batch)
    # Always the same order, so that two groups never wait for each other in a circle.
    for drafter in sorted(by_drafter):
        _count(connection, drafter, by_drafter[drafter])
    _claim_keys(connection, batches)
    return _insert(connection, batches)


def find_answer(connection: Connection, drafter: str, token: str, key: str) -> StoredAnswer | None:
    """The answer to the request with this key of the last 24 hours, or None.

    Raises:
        InvalidInputError: a token or key that no database can hold.
    """
    columns = tables.idempotency_answers.c
    query = select(columns.body_sha256, columns.answer, columns.created_at).where(
        columns.drafter == drafter,
        columns.token == checked_identifier("token", token),
        columns.key == checked_identifier("idempotency_key", key),
        columns.created_at > current_time(connection) - ANSWER_SECONDS,
    )
    row = connection.execute(query).one_or_none() if is_slug(drafter) else None
    return None if row is None else StoredAnswer(row[0], bytes(row[1]), row[2])


def batches_after(
    connection: Connection,
    drafter: str,
    after_id: int,
    *,
    limit_bytes: int = _LIMIT_BYTES,
    limit: int = 1000,
) -> list[Batch]:
    """The batches that follow ``after_id`` (0 for all), oldest first.

    Args:
        connection: any connection of the store.
        drafter: name of the drafter.
        after_id: id of the last batch already seen.
        limit_bytes: stop before payloads exceed this together; the first one always comes.
        limit: at most this many.
    """
    columns = tables.telemetry_batches.c
    query = (
        select(columns.id, columns.payload_bytes)
        .where(columns.drafter == drafter, columns.id > clamped(after_id))
        .order_by(columns.id)
        .limit(clamped(limit))
    )
    last, size = None, 0
    for row in connection.execute(query).all():
        size += row.payload_bytes
        if last is not None and size > limit_bytes:
            break
        last = row.id
    if last is None:
        return []
    return _read(connection, _of(drafter).where(columns.id > clamped(after_id), columns.id <= last))


def newest_batches(
    connection: Connection, drafter: str, *, rows: int, through: int | None = None
) -> list[Batch]:
    """The newest batches that hold at least ``rows`` rows (all, if fewer), oldest first.

    Args:
        connection: any connection of the store.
        drafter: whose batches.
        rows: how many rows they hold at least.
        through: leave out batches with a larger id; None takes all.
    """
    columns = tables.telemetry_batches.c
    query = (
        select(columns.id, columns.rows)
        .where(columns.drafter == drafter)
        .order_by(columns.id.desc())
        .execution_options(yield_per=1000)
    )
    newest = _of(drafter)
    if through is not None:
        query = query.where(columns.id <= clamped(through))
        newest = newest.where(columns.id <= clamped(through))
    first, held = None, 0
    with connection.execute(query) as found:
        for row in found:
            first, held = row.id, held + row.rows
            if held >= rows:
                break
    return [] if first is None else _read(connection, newest.where(columns.id >= first))


def add_counters(connection: Connection, drafter: str) -> None:
    """Totals of a drafter that is being registered: all zero."""
    names = [column.name for column in tables.telemetry_counters.c]
    zeros: dict[str, Any] = dict.fromkeys(names, 0)
    zeros |= {"drafter": drafter, "last_received_at": None}
    connection.execute(insert(tables.telemetry_counters).values(zeros))


def counters(connection: Connection, drafter: str) -> TelemetryCounters:
    """Totals of the drafter.

    Raises:
        NotFoundError: no such drafter.
    """
    table = tables.telemetry_counters
    query = select(table).where(table.c.drafter == drafter)
    row = connection.execute(query).one_or_none() if is_slug(drafter) else None
    if row is None:
        raise NotFoundError("drafter", drafter)
    values = row._asdict()
    del values["drafter"]
    return TelemetryCounters(**values)


def count_rejects(connection: Connection, drafter: str, rejected: int, duplicates: int) -> None:
    """Add refused rows and dropped repeats to the totals; nothing else changes.

    Raises:
        NotFoundError: no such drafter.
    """
    columns = tables.telemetry_counters.c
    statement = (
        update(tables.telemetry_counters)
        .where(columns.drafter == drafter)
        .values(rejected=columns.rejected + rejected, duplicates=columns.duplicates + duplicates)
    )
    if not is_slug(drafter) or connection.execute(statement).rowcount == 0:
        raise NotFoundError("drafter", drafter)


def _count(connection: Connection, drafter: str, batches: Sequence[BatchToStore]) -> None:
    """Raise the totals, and with that lock them until the transaction ends."""
    more = {
        "of": drafter,
        "more_rows": sum(batch.rows for batch in batches),
        "more_batches": len(batches),
        "more_bytes": sum(len(batch.payload) for batch in batches),
        "more_excluded": sum(batch.excluded for batch in batches),
        "newest": max(batch.received_at for batch in batches),
    }
    if not is_slug(drafter) or connection.execute(_RAISE_TOTALS, more).rowcount == 0:
        raise NotFoundError("drafter", drafter)


def _claim_keys(connection: Connection, batches: Sequence[BatchToStore]) -> None:
    """Store the answers; the key of each is a primary key, so only one of two repeats gets in."""
    values = [_answer(batch) for batch in batches if batch.idempotency is not None]
    if not values:
        return
    expired = current_time(connection) - ANSWER_SECONDS
    for drafter in sorted({value["drafter"] for value in values}):
        connection.execute(_DROP_EXPIRED, {"of": drafter, "expired": expired})
    found = connection.execute(_claim_or_skip(connection.dialect.name), values)
    free = Counter(tuple(row) for row in found)
    for value in values:
        place = tuple(value[name] for name in _KEY)
        free[place] -= 1
        if free[place] < 0:
            raise ConflictError(
                "telemetry batch",
                value["key"],
                "a batch with this idempotency key is stored already",
            )


def _answer(batch: BatchToStore) -> dict[str, Any]:
    claim = batch.idempotency or IdempotencyKey("", "", "")
    return {
        "drafter": batch.drafter,
        "token": checked_identifier("token", claim.token),
        "key": checked_identifier("idempotency_key", claim.key),
        "body_sha256": claim.body_sha256,
        "created_at": batch.received_at,
        "answer": batch.answer,
    }


def _insert(connection: Connection, batches: Iterable[BatchToStore]) -> list[int]:
    values = [
        {
            "drafter": batch.drafter,
            "engine": None if batch.engine is None else checked_identifier("engine", batch.engine),
            "received_at": batch.received_at,
            "rows": batch.rows,
            "excluded": batch.excluded,
            "payload_bytes": len(batch.payload),
            "payload": batch.payload,
        }
        for batch in batches
    ]
    return list(connection.execute(_STORE, values).scalars()) if values else []


# Statements that every batch needs, built once.
_totals, _answers, _batches = (
    tables.telemetry_counters.c,
    tables.idempotency_answers.c,
    tables.telemetry_batches.c,
)
_KEY: Final = ("drafter", "token", "key")
_RAISE_TOTALS: Final = (
    update(tables.telemetry_counters)
    .where(_totals.drafter == bindparam("of"))
    .values(
        rows=_totals.rows + bindparam("more_rows"),
        batches=_totals.batches + bindparam("more_batches"),
        bytes=_totals.bytes + bindparam("more_bytes"),
        excluded=_totals.excluded + bindparam("more_excluded"),
        stored_rows=_totals.stored_rows + bindparam("more_rows"),
        stored_bytes=_totals.stored_bytes + bindparam("more_bytes"),
        last_received_at=bindparam("newest"),
    )
)
_DROP_EXPIRED: Final = delete(tables.idempotency_answers).where(
    _answers.drafter == bindparam("of"), _answers.created_at <= bindparam("expired")
)
_STORE: Final = insert(tables.telemetry_batches).returning(
    _batches.id, sort_by_parameter_order=True
)


@cache
def _claim_or_skip(dialect: str) -> ReturningInsert[Any]:
    statement = insert_for(dialect, tables.idempotency_answers)
    return statement.on_conflict_do_nothing(index_elements=_KEY).returning(
        *(_answers[name] for name in _KEY)
    )


def _of(drafter: str) -> Select[Any]:
    columns = tables.telemetry_batches.c
    named = ("id", "drafter", "engine", "received_at", "rows", "payload")
    query = select(*(columns[name] for name in named))
    return query.where(columns.drafter == drafter).order_by(columns.id)


def _read(connection: Connection, query: Select[Any]) -> list[Batch]:
    return [
        Batch(row.id, row.drafter, row.engine, row.received_at, row.rows, bytes(row.payload))
        for row in connection.execute(query)
    ]
