"""Who acts on a drafter: one worker at a time, leased in the database, fenced at the commit.

The conventions are those of :mod:`monitoring.store.jobs`: a lease ends by the database's clock,
each new owner raises the fencing number, and proves in the committing transaction that its number
still holds.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, insert, select, update

from monitoring.store import tables
from monitoring.store.database import Database, lease_time
from monitoring.store.drafter_rows import lock
from monitoring.store.errors import LeaseLostError
from monitoring.store.fields import checked_identifier
from monitoring.store.jobs import LEASE_SECONDS

__all__ = ["DrafterLease", "acquire", "check_fence", "holder", "release", "renew"]


@dataclass(frozen=True)
class DrafterLease:
    """The right to act on a drafter.

    Attributes:
        drafter: name of the drafter.
        owner: who holds it, unique among all processes.
        fencing: number of the lease; grows with each new one.
        until: seconds since the epoch, by the database's clock.
    """

    drafter: str
    owner: str
    fencing: int
    until: float


def acquire(
    connection: Connection,
    database: Database,
    drafter: str,
    owner: str,
    *,
    seconds: float = LEASE_SECONDS,
) -> DrafterLease | None:
    """The lease of ``drafter``, or None while somebody holds it, ``owner`` itself included.

    Args:
        connection: a write transaction.
        database: whose clock counts.
        drafter: name of the drafter.
        owner: who asks, unique among all processes.
        seconds: length of the lease.

    Raises:
        NotFoundError: no such drafter.
        InvalidInputError: an owner that no database can hold.
    """
    lock(connection, drafter)  # the first two of a drafter's owners must not insert at once
    now = database.now(connection)
    columns = tables.drafter_leases.c
    row = connection.execute(
        select(tables.drafter_leases).where(columns.drafter == drafter)
    ).first()
    values = {"owner": checked_identifier("owner", owner), "until": now + seconds}
    if row is None:
        first = insert(tables.drafter_leases).values(drafter=drafter, fencing=1, **values)
        connection.execute(first)
        return DrafterLease(drafter, owner, 1, now + seconds)
    if row.until is not None and row.until > now:
        return None
    fencing = row.fencing + 1
    taken = update(tables.drafter_leases).where(columns.drafter == drafter)
    connection.execute(taken.values(fencing=fencing, **values))
    return DrafterLease(drafter, owner, fencing, now + seconds)


def renew(
    connection: Connection,
    database: Database,
    lease: DrafterLease,
    *,
    seconds: float = LEASE_SECONDS,
) -> DrafterLease:
    """The lease, lasting ``seconds`` from now.

    Raises:
        LeaseLostError: it ran out or was taken over; it is never revived.
    """
    now = database.now(connection)
    statement = update(tables.drafter_leases).where(_held(lease, now)).values(until=now + seconds)
    if connection.execute(statement).rowcount == 0:
        raise _lost(lease)
    return DrafterLease(lease.drafter, lease.owner, lease.fencing, now + seconds)


def check_fence(connection: Connection, database: Database, lease: DrafterLease) -> None:
    """Return when the lease is still the caller's; it stays so until this transaction ends.

    Raises:
        LeaseLostError: it ran out or was taken over.
    """
    query = select(tables.drafter_leases.c.drafter).where(_held(lease, database.now(connection)))
    if connection.execute(query.with_for_update()).scalar() is None:
        raise _lost(lease)


def release(connection: Connection, lease: DrafterLease) -> None:
    """Let others act on the drafter at once.

    Raises:
        LeaseLostError: it ran out or was taken over.
    """
    held = _held(lease, lease_time(connection))
    freed = update(tables.drafter_leases).where(held).values(owner=None, until=None)
    if connection.execute(freed).rowcount == 0:
        raise _lost(lease)


def holder(connection: Connection, drafter: str) -> DrafterLease | None:
    """Whose lease holds now, or None."""
    columns = tables.drafter_leases.c
    query = select(tables.drafter_leases).where(
        columns.drafter == drafter, columns.until > lease_time(connection)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else DrafterLease(row.drafter, row.owner, row.fencing, row.until)


def _held(lease: DrafterLease, now: float) -> ColumnElement[bool]:
    columns = tables.drafter_leases.c
    return (
        (columns.drafter == lease.drafter)
        & (columns.owner == lease.owner)
        & (columns.fencing == lease.fencing)
        & (columns.until > now)
    )


def _lost(lease: DrafterLease) -> LeaseLostError:
    return LeaseLostError(f"loop of {lease.drafter}")
