"""Work that must happen once across processes: leased in the database, fenced at the commit.

A lease ends by the database's clock, whoever held it. Each new lease of a job raises its fencing
number; an owner proves in the committing transaction that the number is still its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, func, insert, select, update

from calib.errors import InvalidInputError
from monitoring.store import audit, tables, tracking_outbox
from monitoring.store.database import Database, current_time, lease_time
from monitoring.store.drafter_rows import lock
from monitoring.store.errors import LeaseLostError, NotFoundError
from monitoring.store.fields import (
    checked_identifier,
    checked_text,
    clamped,
    is_slug,
    json_text,
    read_json,
    read_optional_json,
)

__all__ = [
    "LEASE_SECONDS",
    "MAXIMUM_ATTEMPTS",
    "FinalStatus",
    "Job",
    "JobKind",
    "JobStatus",
    "check_fence",
    "declare_reads",
    "enqueue",
    "finish",
    "get_job",
    "heartbeat",
    "lease_next",
    "list_jobs",
    "release",
]

JobKind = Literal["recalibration", "report"]
JobStatus = Literal["queued", "running", "succeeded", "refused", "failed"]
FinalStatus = Literal["succeeded", "refused", "failed"]

LEASE_SECONDS: Final = 30.0
MAXIMUM_ATTEMPTS: Final = 5
_LEASING_LOCK: Final = 0x6A6F_6273  # any number, the same in every release


@dataclass(frozen=True)
class Job:
    """A piece of work as it stood when it was read.

    Attributes:
        id: 32 hexadecimal digits.
        drafter: name of the drafter.
        kind: ``"recalibration"`` or ``"report"``.
        options: plain JSON.
        status: ``queued``, ``running``, ``succeeded``, ``refused`` or ``failed``.
        attempts: leases so far that were not given back.
        fencing: number of the lease; grows with each.
        lease_owner: who holds it, or None.
        lease_until: seconds since the epoch, or None.
        created_at: seconds since the epoch.
        started_at: time of the first lease, or None.
        finished_at: or None.
        result: plain JSON, or None.
        error: plain JSON, or None.
    """

    id: str
    drafter: str
    kind: JobKind
    options: Mapping[str, Any]
    status: JobStatus
    attempts: int
    fencing: int
    lease_owner: str | None
    lease_until: float | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    result: Mapping[str, Any] | None
    error: Mapping[str, Any] | None


def enqueue(
    connection: Connection,
    drafter: str,
    kind: JobKind,
    options: Mapping[str, Any],
    *,
    actor: str,
    request_id: str | None = None,
) -> Job:
    """A queued job; one of the same drafter, kind and options that still waits is not doubled.

    Raises:
        NotFoundError: no such drafter.
        InvalidInputError: an unknown kind, or options that are no JSON.
    """
    if kind not in get_args(JobKind):
        raise InvalidInputError("kind", kind, f"give one of {get_args(JobKind)}")
    lock(connection, drafter)
    columns = tables.jobs.c
    wanted = json_text(options)
    query = select(columns.id).where(
        columns.drafter == drafter,
        columns.kind == kind,
        columns.options == wanted,
        columns.status == "queued",
    )
    waiting = connection.execute(query.order_by(columns.position)).scalars().first()
    if waiting is not None:
        return get_job(connection, waiting)
    values = {
        "id": uuid.uuid4().hex,
        "drafter": drafter,
        "kind": kind,
        "options": wanted,
        "status": "queued",
        "attempts": 0,
        "fencing": 0,
        "created_at": current_time(connection),
        "created_by": checked_text("actor", actor),
    }
    connection.execute(insert(tables.jobs).values(values))
    details = {"job": values["id"], "kind": kind}
    audit.record(connection, actor, "enqueue", drafter, details, request_id)
    return get_job(connection, str(values["id"]))


def lease_next(
    connection: Connection, database: Database, owner: str, *, seconds: float = LEASE_SECONDS
) -> Job | None:
    """The oldest job that may run now, leased to ``owner``; None when there is none.

    A drafter has one running job at a time. A job whose lease ran out is taken over with a higher
    fencing number, until its attempts are used up: then it fails.

    Args:
        connection: a write transaction.
        database: whose clock counts.
        owner: who asks, unique among all processes.
        seconds: length of the lease.
    """
    lock_leasing(connection)
    now = database.now(connection)
    _fail_exhausted(connection, now)
    columns = tables.jobs.c
    other = tables.jobs.alias()
    busy = select(other.c.position).where(
        other.c.drafter == columns.drafter, other.c.status == "running"
    )
    free = (columns.status == "queued") & ~busy.exists()
    query = select(columns.id).where(free | _expired(now)).order_by(columns.position).limit(1)
    found = connection.execute(query).scalar()
    if found is None:
        return None
    statement = (
        update(tables.jobs)
        .where(columns.id == found)
        .values(
            status="running",
            attempts=columns.attempts + 1,
            fencing=columns.fencing + 1,
            lease_owner=checked_identifier("owner", owner),
            lease_until=now + seconds,
            started_at=func.coalesce(columns.started_at, current_time(connection)),
            reads_from=None,
        )
    )
    connection.execute(statement)
    return get_job(connection, found)


def heartbeat(
    connection: Connection, database: Database, job: Job, *, seconds: float = LEASE_SECONDS
) -> Job:
    """The job with its lease lasting ``seconds`` from now.

    Raises:
        LeaseLostError: the lease ran out or was taken over; it is never revived.
    """
    until = database.now(connection) + seconds
    return _change(connection, database, job, lease_until=until)


def check_fence(connection: Connection, database: Database, job: Job) -> None:
    """Return when the lease is still the caller's; it stays so until this transaction ends.

    Raises:
        LeaseLostError: the lease ran out or was taken over.
    """
    query = select(tables.jobs.c.id).where(_held(job, database.now(connection)))
    if connection.execute(query.with_for_update()).scalar() is None:
        raise LeaseLostError(job.id)


def declare_reads(connection: Connection, database: Database, job: Job, first_batch: int) -> None:
    """Let retention know that the job reads batches from ``first_batch`` on, and none before.

    Until then retention keeps every batch of the drafter while the job runs.

    Raises:
        LeaseLostError: the lease ran out or was taken over.
    """
    _change(connection, database, job, reads_from=first_batch)


def finish(
    connection: Connection,
    job: Job,
    status: FinalStatus,
    result: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> Job:
    """The finished job, in the transaction of its effects.

    Raises:
        LeaseLostError: the lease ran out or was taken over.
        InvalidInputError: an unknown status, or a result or error that is no JSON.
    """
    if status not in get_args(FinalStatus):
        raise InvalidInputError("status", status, f"give one of {get_args(FinalStatus)}")
    values = {
        "status": status,
        "result": None if result is None else json_text(result),
        "error": None if error is None else json_text(error),
        "finished_at": current_time(connection),
        "lease_owner": None,
        "lease_until": None,
        "reads_from": None,
    }
    statement = update(tables.jobs).where(_held(job, lease_time(connection))).values(**values)
    if connection.execute(statement).rowcount == 0:
        raise LeaseLostError(job.id)
    return _finished(connection, job.id)


def release(connection: Connection, job: Job) -> Job:
    """The job back in the queue, as a process does that shuts down; costs no attempt.

    Raises:
        LeaseLostError: the lease ran out or was taken over.
    """
    columns = tables.jobs.c
    statement = (
        update(tables.jobs)
        .where(_held(job, lease_time(connection)))
        .values(
            status="queued",
            attempts=columns.attempts - 1,
            lease_owner=None,
            lease_until=None,
            reads_from=None,
        )
    )
    if connection.execute(statement).rowcount == 0:
        raise LeaseLostError(job.id)
    return get_job(connection, job.id)


def get_job(connection: Connection, identifier: str) -> Job:
    """The job with this id.

    Raises:
        NotFoundError: no such job.
    """
    if not is_slug(identifier):
        raise NotFoundError("job", identifier)
    query = select(tables.jobs).where(tables.jobs.c.id == identifier)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("job", identifier)
    return _read(row)


def list_jobs(
    connection: Connection,
    *,
    drafter: str | None = None,
    status: JobStatus | None = None,
    before: str | None = None,
    limit: int = 100,
) -> list[Job]:
    """The newest jobs first.

    Args:
        connection: any connection of the store.
        drafter: only jobs of this drafter.
        status: only jobs in this status.
        before: only jobs older than the one with this id: the last of the page before.
        limit: at most this many.
    """
    columns = tables.jobs.c
    query = select(tables.jobs).order_by(columns.position.desc()).limit(clamped(limit))
    if not all(is_slug(name) for name in (drafter, before) if name is not None):
        return []
    if drafter is not None:
        query = query.where(columns.drafter == drafter)
    if status is not None:
        query = query.where(columns.status == status)
    if before is not None:
        position = select(columns.position).where(columns.id == before).scalar_subquery()
        query = query.where(columns.position < position)
    return [_read(row) for row in connection.execute(query)]


def lock_leasing(connection: Connection) -> None:
    """Keep others from leasing a job until this transaction ends. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_LEASING_LOCK)))


def _finished(connection: Connection, identifier: str) -> Job:
    """The job that just ended, with the tracking server's entry about it."""
    job = get_job(connection, identifier)
    if job.kind == "recalibration":
        tracking_outbox.record(connection, job.drafter, "job", _told(job))
    return job


def _told(job: Job) -> dict[str, Any]:
    """What the tracking server is told of a finished recalibration; it outlives the job."""
    told = {name: getattr(job, name) for name in ("status", "options", "error", "finished_at")}
    result = {name: value for name, value in (job.result or {}).items() if name != "evidence"}
    evidence = (job.result or {}).get("evidence")
    if isinstance(evidence, Mapping) and "held_out" in evidence:
        result["held_out"] = evidence["held_out"]
    return {**told, "job": job.id, "started_at": job.started_at, "result": result}


def _held(job: Job, now: float) -> ColumnElement[bool]:
    columns = tables.jobs.c
    return (
        (columns.id == job.id)
        & (columns.status == "running")
        & (columns.fencing == job.fencing)
        & (columns.lease_owner == job.lease_owner)
        & (columns.lease_until > now)
    )


def _expired(now: float) -> ColumnElement[bool]:
    return (tables.jobs.c.status == "running") & (tables.jobs.c.lease_until <= now)


def _fail_exhausted(connection: Connection, now: float) -> None:
    reason = f"given up after {MAXIMUM_ATTEMPTS} attempts: each owner vanished before it finished"
    statement = (
        update(tables.jobs)
        .where(_expired(now), tables.jobs.c.attempts >= MAXIMUM_ATTEMPTS)
        .values(
            status="failed",
            error=json_text({"type": "attempts-exhausted", "reason": reason}),
            finished_at=current_time(connection),
            lease_owner=None,
            lease_until=None,
        )
        .returning(tables.jobs.c.id)
    )
    for identifier in connection.execute(statement).scalars().all():
        _finished(connection, identifier)


def _change(connection: Connection, database: Database, job: Job, **values: Any) -> Job:
    now = database.now(connection)
    statement = update(tables.jobs).where(_held(job, now)).values(**values)
    if connection.execute(statement).rowcount == 0:
        raise LeaseLostError(job.id)
    return get_job(connection, job.id)


def _read(row: Row[Any]) -> Job:
    return Job(
        id=row.id,
        drafter=row.drafter,
        kind=row.kind,
        options=read_json(row.options),
        status=row.status,
        attempts=row.attempts,
        fencing=row.fencing,
        lease_owner=row.lease_owner,
        lease_until=row.lease_until,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        result=read_optional_json(row.result),
        error=read_optional_json(row.error),
    )
