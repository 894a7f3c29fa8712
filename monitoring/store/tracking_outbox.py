"""What the tracking server is still to be told: an outbox, filled where the thing itself is stored.

An entry is written in the transaction of what it mirrors, so it exists exactly when that does, and
nobody waits for a tracking server. Entries of one drafter are delivered in order, each by the one
process that holds its lease; a delivered entry is deleted, one that can never be delivered stays,
marked. Delivering writes nothing twice even when an entry comes twice, so at least once is enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, select, update

from calib.errors import InvalidInputError
from monitoring.store import tables
from monitoring.store.database import Database, current_time
from monitoring.store.drafter_rows import Aliases, all_states
from monitoring.store.errors import LeaseLostError
from monitoring.store.fields import LONGEST_TEXT, checked_identifier, clamped, json_text, read_json

__all__ = [
    "LEASE_SECONDS",
    "Entry",
    "EntryKind",
    "EntryStatus",
    "TrackingTotals",
    "anything_waiting",
    "claim_next",
    "deliver",
    "give_back",
    "give_up",
    "list_entries",
    "put_off",
    "record",
    "record_aliases",
    "set_enabled",
    "totals",
]

EntryKind = Literal["revision", "publication", "aliases", "job", "report"]
EntryStatus = Literal["waiting", "failed"]

LEASE_SECONDS: Final = 120.0
"""Longer than any delivery with bounded calls takes; a longer one ends its process instead."""

_THE_ROW: Final = 1


@dataclass(frozen=True)
class Entry:
    """One thing to tell, as it stood when it was read.

    Attributes:
        id: grows; entries of a drafter are delivered in this order.
        drafter: whose.
        kind: ``revision``, ``publication``, ``aliases``, ``job`` or ``report``.
        content: plain JSON; what it names is immutable or part of it.
        created_at: seconds since the epoch.
        status: ``"waiting"``, or ``"failed"`` for good.
        attempts: leases so far; the number of the lease it was read with.
        faults: attempts that ended in an unexpected error.
        lease_owner: who delivers it now, or None.
        error: why it failed for good, or None.
    """

    id: int
    drafter: str
    kind: EntryKind
    content: Mapping[str, Any]
    created_at: float
    status: EntryStatus
    attempts: int
    faults: int
    lease_owner: str | None
    error: str | None


@dataclass(frozen=True)
class TrackingTotals:
    """Counters since the database was made, and what waits now.

    Attributes:
        enabled: whether new entries are written at all.
        delivered: entries that arrived.
        deferred: entries that had to wait because the server was away; counted once each. They
            are not lost: later they count as delivered as well.
        failed: entries that can never arrive; they are kept, with the reason.
        waiting: entries not delivered yet.
        oldest_waiting_at: when the oldest of them was written, seconds since the epoch, or None.
        away_since: since when the server has not answered, or None.
        delivered_at: time of the newest delivery, or None.
    """

    enabled: bool
    delivered: int
    deferred: int
    failed: int
    waiting: int
    oldest_waiting_at: float | None
    away_since: float | None
    delivered_at: float | None


def record(
    connection: Connection, drafter: str, kind: EntryKind, content: Mapping[str, Any]
) -> None:
    """Write an entry in the caller's transaction; nothing where mirroring is switched off.

    Raises:
        InvalidInputError: an unknown kind, or content that is no JSON.
    """
    if kind not in get_args(EntryKind):
        raise InvalidInputError("kind", kind, f"give one of {get_args(EntryKind)}")
    columns = tables.tracking_totals.c
    if connection.execute(select(columns.enabled)).scalar() == 0:
        return
    values = {
        "drafter": drafter,
        "kind": kind,
        "status": "waiting",
        "created_at": current_time(connection),
        "attempts": 0,
        "faults": 0,
        "deferred": 0,
        "content": json_text(content),
    }
    connection.execute(insert(tables.tracking_outbox).values(values))


def record_aliases(connection: Connection, drafter: str, aliases: Aliases) -> None:
    """Write an entry that says what the aliases point at from now on."""
    record(connection, drafter, "aliases", {"aliases": asdict(aliases)})


def anything_waiting(connection: Connection) -> bool:
    """Whether some entry waits, leased or not; a look that writes nothing."""
    columns = tables.tracking_outbox.c
    query = select(columns.id).where(columns.status == "waiting").limit(1)
    return connection.execute(query).scalar() is not None


def claim_next(
    connection: Connection, database: Database, owner: str, *, seconds: float = LEASE_SECONDS
) -> Entry | None:
    """The oldest entry that may be delivered now, leased to ``owner``; None when there is none.

    Only the first waiting entry of each drafter may, so that order is kept; while its lease lasts
    nobody else touches the drafter.

    Args:
        connection: a write transaction.
        database: whose clock counts.
        owner: who asks, unique among all processes.
        seconds: length of the lease.
    """
    now = database.now(connection)
    columns = tables.tracking_outbox.c
    heads = (
        select(func.min(columns.id)).where(columns.status == "waiting").group_by(columns.drafter)
    )
    query = select(columns.id).where(columns.id.in_(heads), _free(now)).order_by(columns.id)
    for found in connection.execute(query).scalars().all():
        # On PostgreSQL another process may have been faster: the condition is asked again.
        taken = (
            update(tables.tracking_outbox)
            .where(columns.id == found, columns.status == "waiting", _free(now))
            .values(
                lease_owner=checked_identifier("owner", owner),
                lease_until=now + seconds,
                attempts=columns.attempts + 1,
            )
        )
        if connection.execute(taken).rowcount:
            return _get(connection, found)
    return None


def deliver(connection: Connection, database: Database, entry: Entry) -> None:
    """Forget a delivered entry and count it; the server is there again, if it was away.

    Raises:
        LeaseLostError: the lease ran out or was taken over; somebody else delivers it again.
    """
    held = _held(entry, database.now(connection))
    if connection.execute(delete(tables.tracking_outbox).where(held)).rowcount == 0:
        raise _lost(entry)
    columns = tables.tracking_totals.c
    _count(
        connection,
        delivered=columns.delivered + 1,
        delivered_at=current_time(connection),
        away_since=None,
    )


def put_off(connection: Connection, database: Database, entry: Entry | None) -> TrackingTotals:
    """Give an entry back because the server is away, and count everything that waits as deferred.

    Each entry is counted once, however long it waits. An entry whose lease is lost by now is
    somebody else's and left alone.

    Args:
        connection: a write transaction.
        database: whose clock counts.
        entry: the claimed entry; None when the server was away before anything was claimed.

    Returns:
        The totals after it.
    """
    columns = tables.tracking_outbox.c
    if entry is not None:
        freed = update(tables.tracking_outbox).where(_held(entry, database.now(connection)))
        connection.execute(freed.values(lease_owner=None, lease_until=None))
    marked = (
        update(tables.tracking_outbox)
        .where(columns.status == "waiting", columns.deferred == 0)
        .values(deferred=1)
    )
    newly = connection.execute(marked).rowcount
    total = tables.tracking_totals.c
    _count(
        connection,
        deferred=total.deferred + newly,
        away_since=func.coalesce(total.away_since, current_time(connection)),
    )
    return totals(connection)


def give_back(connection: Connection, database: Database, entry: Entry) -> Entry:
    """The entry, free for another try after an unexpected error, with that fault counted.

    Raises:
        LeaseLostError: the lease ran out or was taken over.
    """
    columns = tables.tracking_outbox.c
    statement = update(tables.tracking_outbox).where(_held(entry, database.now(connection)))
    freed = statement.values(lease_owner=None, lease_until=None, faults=columns.faults + 1)
    if connection.execute(freed).rowcount == 0:
        raise _lost(entry)
    return _get(connection, entry.id)


def give_up(connection: Connection, database: Database, entry: Entry, error: str) -> None:
    """Keep an entry that can never be delivered, marked with the reason, and go on with the next.

    Raises:
        LeaseLostError: the lease ran out or was taken over.
    """
    held = _held(entry, database.now(connection))
    failed = (
        update(tables.tracking_outbox)
        .where(held)
        .values(
            status="failed",
            failed_at=current_time(connection),
            lease_owner=None,
            lease_until=None,
            error=error.replace("\0", "")[:LONGEST_TEXT],
        )
    )
    if connection.execute(failed).rowcount == 0:
        raise _lost(entry)
    _count(connection, failed=tables.tracking_totals.c.failed + 1)


def totals(connection: Connection) -> TrackingTotals:
    """The counters, and what waits now."""
    columns = tables.tracking_outbox.c
    waiting = select(func.count(), func.min(columns.created_at)).where(columns.status == "waiting")
    count, oldest = connection.execute(waiting).one()
    row = connection.execute(select(tables.tracking_totals)).one()
    return TrackingTotals(
        enabled=bool(row.enabled),
        delivered=row.delivered,
        deferred=row.deferred,
        failed=row.failed,
        waiting=count,
        oldest_waiting_at=oldest,
        away_since=row.away_since,
        delivered_at=row.delivered_at,
    )


def list_entries(
    connection: Connection,
    *,
    status: EntryStatus | None = None,
    drafter: str | None = None,
    limit: int = 100,
) -> list[Entry]:
    """The oldest entries first.

    Args:
        connection: any connection of the store.
        status: only entries in this status.
        drafter: only entries of this drafter.
        limit: at most this many.
    """
    columns = tables.tracking_outbox.c
    query = select(tables.tracking_outbox).order_by(columns.id).limit(clamped(limit))
    if status is not None:
        query = query.where(columns.status == status)
    if drafter is not None:
        query = query.where(columns.drafter == drafter)
    return [_read(row) for row in connection.execute(query)]


def set_enabled(connection: Connection, enabled: bool) -> bool:
    """Switch the writing of entries on or off; whether that changed anything.

    Switched on again, every revision and the aliases of every drafter are entered once more: what
    was not mirrored meanwhile is made up for, and what is there already stays as it is. Reports
    and refusals of the time between are not made up for.
    """
    columns = tables.tracking_totals.c
    statement = update(tables.tracking_totals).where(columns.enabled != int(enabled))
    if connection.execute(statement.values(enabled=int(enabled))).rowcount == 0:
        return False
    if enabled:
        _record_everything(connection)
    return True


def _record_everything(connection: Connection) -> None:
    revisions, published = tables.revisions.c, tables.publications.c
    for state in all_states(connection):
        name = state.drafter.name
        numbers = select(revisions.number).where(revisions.drafter == name)
        for number in connection.execute(numbers.order_by(revisions.number)).scalars().all():
            record(connection, name, "revision", {"revision": number})
        newest = select(published.revision).where(
            published.drafter == name, published.number == state.publication
        )
        content = {
            "publication": state.publication,
            "revision": connection.execute(newest).scalar_one(),
            "aliases": asdict(state.aliases),
        }
        record(connection, name, "publication", content)


def _count(connection: Connection, **values: Any) -> None:
    columns = tables.tracking_totals.c
    connection.execute(
        update(tables.tracking_totals).where(columns.id == _THE_ROW).values(**values)
    )


def _free(now: float) -> ColumnElement[bool]:
    until = tables.tracking_outbox.c.lease_until
    return until.is_(None) | (until <= now)


def _held(entry: Entry, now: float) -> ColumnElement[bool]:
    columns = tables.tracking_outbox.c
    return (
        (columns.id == entry.id)
        & (columns.status == "waiting")
        & (columns.lease_owner == entry.lease_owner)
        & (columns.attempts == entry.attempts)
        & (columns.lease_until > now)
    )


def _lost(entry: Entry) -> LeaseLostError:
    return LeaseLostError(f"tracking entry {entry.id} of {entry.drafter}")


def _get(connection: Connection, identifier: int) -> Entry:
    query = select(tables.tracking_outbox).where(tables.tracking_outbox.c.id == identifier)
    return _read(connection.execute(query).one())


def _read(row: Row[Any]) -> Entry:
    return Entry(
        id=row.id,
        drafter=row.drafter,
        kind=row.kind,
        content=read_json(row.content),
        created_at=row.created_at,
        status=row.status,
        attempts=row.attempts,
        faults=row.faults,
        lease_owner=row.lease_owner,
        error=row.error,
    )
