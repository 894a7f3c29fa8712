"""Forget by age and by size: the oldest batches first, never what a running job may read.

Small transactions, so that ingest hardly waits. What is acknowledged and young enough stays.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Connection, Row, delete, func, or_, select, update

from monitoring.store import tables
from monitoring.store.database import Database, current_time
from monitoring.store.jobs import lock_leasing
from monitoring.store.telemetry import ANSWER_SECONDS

__all__ = ["Retained", "apply_retention"]

JOB_SECONDS: Final = 30 * 24 * 3600.0  # finished jobs are kept this long
_BATCHES_A_TRANSACTION: Final = 200
_EVENTS_A_TRANSACTION: Final = 1000
_MOST_TRANSACTIONS: Final = 10_000  # bounds one call; the next one goes on
_VACUUM_PAGES: Final = 1000
_MOST_VACUUMS: Final = 100


@dataclass(frozen=True)
class Retained:
    """What one call removed, and what is left.

    Attributes:
        batches: telemetry batches removed.
        rows: rows in them.
        bytes: size of their payloads.
        answers: idempotency answers removed.
        jobs: finished jobs removed.
        events: resolved events removed.
        engines: engines removed that were silent for too long.
        stored_bytes: size of the payloads that are left.
    """

    batches: int = 0
    rows: int = 0
    bytes: int = 0
    answers: int = 0
    jobs: int = 0
    events: int = 0
    engines: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True)
class _Limits:
    max_age_seconds: float | None
    max_bytes: int | None


def apply_retention(
    database: Database,
    *,
    max_age_seconds: float | None,
    max_bytes: int | None,
    history_seconds: float | None = None,
) -> Retained:
    """Remove batches that are too old, then the oldest until the payloads fit into ``max_bytes``.

    Also idempotency answers older than 24 hours, jobs that finished 30 days ago, and history older
    than ``history_seconds``: events that were resolved, and engines that polled last, that long
    ago. Limits that are None do not bind. Batches that a running job may read stay until it is
    done; events that are open or acknowledged stay, and so do those that something else refers to.

    Raises:
        StoreError: the database failed; what was removed before stays removed.
    """
    limits = _Limits(max_age_seconds, max_bytes)
    done = Retained()
    for _ in range(_MOST_TRANSACTIONS):
        step = database.run(lambda connection: _remove_batches(connection, database, limits))
        done = replace(
            done,
            batches=done.batches + step.batches,
            rows=done.rows + step.rows,
            bytes=done.bytes + step.bytes,
            stored_bytes=step.stored_bytes,
        )
        if step.batches == 0:
            break
    answers, jobs = database.run(_remove_leftovers)
    done = replace(done, answers=answers, jobs=jobs)
    if history_seconds is not None:
        done = replace(
            done,
            events=_remove_events(database, history_seconds),
            engines=database.run(lambda connection: _remove_engines(connection, history_seconds)),
        )
    if done.batches or answers or jobs or done.events:
        _shrink(database)
    return done


def _remove_batches(connection: Connection, database: Database, limits: _Limits) -> Retained:
    """One small transaction: the oldest batches that may go."""
    lock_leasing(connection)  # no job starts to read while this looks for what is read
    now = database.now(connection)
    columns = tables.telemetry_batches.c
    counters = tables.telemetry_counters.c
    stored = int(connection.execute(select(func.sum(counters.stored_bytes))).scalar() or 0)
    query = (
        select(
            columns.id, columns.drafter, columns.received_at, columns.rows, columns.payload_bytes
        )
        .where(_unread(now))
        .order_by(columns.id)
        .limit(_BATCHES_A_TRANSACTION)
    )
    excess = 0 if limits.max_bytes is None else stored - limits.max_bytes
    if excess <= 0:
        if limits.max_age_seconds is None:
            return Retained(stored_bytes=stored)
        oldest = current_time(connection) - limits.max_age_seconds
        query = query.where(columns.received_at < oldest)
    rows = connection.execute(query).all()
    before = [0, *accumulate(row.payload_bytes for row in rows)]
    # By size only until it fits: the rest is for the next transaction to judge, by age.
    fitting = zip(rows, before[:-1], strict=True)
    chosen = [row for row, gone in fitting if excess <= 0 or gone < excess]
    _delete(connection, chosen)
    return Retained(
        batches=len(chosen),
        rows=sum(row.rows for row in chosen),
        bytes=before[len(chosen)],
        stored_bytes=stored - before[len(chosen)],
    )


def _unread(now: float) -> ColumnElement[bool]:
    """Batches that no job with a running lease may read."""
    columns, jobs = tables.telemetry_batches.c, tables.jobs.c
    reading = select(jobs.position).where(
        jobs.drafter == columns.drafter,
        jobs.status == "running",
        jobs.lease_until > now,
        or_(jobs.reads_from.is_(None), jobs.reads_from <= columns.id),
    )
    return ~reading.exists()


def _delete(connection: Connection, rows: Sequence[Row[*tuple[Any, ...]]]) -> None:
    batches, counters = tables.telemetry_batches, tables.telemetry_counters
    connection.execute(delete(batches).where(batches.c.id.in_([row.id for row in rows])))
    for drafter in sorted({row.drafter for row in rows}):
        gone = [row for row in rows if row.drafter == drafter]
        statement = update(counters).where(counters.c.drafter == drafter)
        connection.execute(
            statement.values(
                stored_rows=counters.c.stored_rows - sum(row.rows for row in gone),
                stored_bytes=counters.c.stored_bytes - sum(row.payload_bytes for row in gone),
            )
        )


def _remove_leftovers(connection: Connection) -> tuple[int, int]:
    """Idempotency answers and finished jobs that nobody asks for any more: how many of each."""
    now = current_time(connection)
    answers, jobs = tables.idempotency_answers, tables.jobs
    old_answers = delete(answers).where(answers.c.created_at <= now - ANSWER_SECONDS)
    old_jobs = delete(jobs).where(jobs.c.finished_at <= now - JOB_SECONDS)
    return connection.execute(old_answers).rowcount, connection.execute(old_jobs).rowcount


def _remove_events(database: Database, age: float) -> int:
    """Resolved events of that age, in small transactions: how many."""
    total = 0
    for _ in range(_MOST_TRANSACTIONS):
        gone = database.run(lambda connection: _remove_some_events(connection, age))
        total += gone
        if gone < _EVENTS_A_TRANSACTION:
            break
    return total


def _remove_some_events(connection: Connection, age: float) -> int:
    events = tables.events
    oldest = current_time(connection) - age
    query = select(events.c.id).where(events.c.state == "resolved", events.c.resolved_at < oldest)
    for column in _references_to(events.c.id):
        query = query.where(~select(column).where(column == events.c.id).exists())
    found = connection.execute(query.order_by(events.c.id).limit(_EVENTS_A_TRANSACTION)).scalars()
    return connection.execute(delete(events).where(events.c.id.in_(found.all()))).rowcount


def _references_to(column: Column[Any]) -> list[Column[Any]]:
    """Columns of other tables whose foreign key is ``column``."""
    keys = (key for table in tables.metadata.tables.values() for key in table.foreign_keys)
    return [key.parent for key in keys if key.column is column]


def _remove_engines(connection: Connection, age: float) -> int:
    """Engines that have been silent for that long; one that polls again is a new one."""
    engines = tables.engines
    oldest = current_time(connection) - age
    return connection.execute(delete(engines).where(engines.c.seen_at < oldest)).rowcount


def _shrink(database: Database) -> None:
    """Give freed pages of a SQLite file back, some at a time; PostgreSQL does it by itself."""
    if database.dialect != "sqlite":
        return
    raw = database.engine.raw_connection()
    # Whoever is in the way goes first: pages that stay free are used again.
    with closing(raw), suppress(sqlite3.OperationalError):
        driver: Any = raw.driver_connection
        driver.execute("PRAGMA query_only=OFF")
        for _ in range(_MOST_VACUUMS):
            if driver.execute("PRAGMA freelist_count").fetchone() == (0,):
                break
            driver.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
