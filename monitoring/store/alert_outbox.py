"""What receivers of alerts are to be told: written with the event, handed over until it arrived.

An event leaves a *notice* in the transaction that opens, escalates or resolves it, so neither can
be there without the other. Later a worker makes one *delivery* of it for each receiver: its id is
the same however often it is tried, and receivers tell repeats by it. Deliveries of one event reach
a receiver in order. A worker that dies loses its lease, not the delivery.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from monitoring.store import tables
from monitoring.store.database import current_time, lease_time
from monitoring.store.errors import LeaseLostError
from monitoring.store.fields import checked_identifier, json_text, read_json
from monitoring.store.upserts import insert_for

if TYPE_CHECKING:
    from monitoring.store.events import Event, Severity

__all__ = [
    "Delivery",
    "Notice",
    "ReceiverTotals",
    "Recipient",
    "due_receivers",
    "event_holds",
    "forget_finished",
    "hold",
    "lease_due",
    "note_event",
    "note_resolved",
    "open_at_receiver",
    "postpone",
    "receiver_totals",
    "release",
    "settle",
    "spread",
    "was_told",
]

Notice = Literal["opened", "escalated", "resolved", "noticed"]
FinalStatus = Literal["delivered", "silenced", "abandoned"]

_RANK: Final[Mapping[str, int]] = {"info": 0, "warning": 1, "critical": 2}
_LONGEST_ERROR: Final = 300
_SPREAD_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Recipient:
    """A receiver as the outbox knows it.

    Attributes:
        name: of the receiver, unique.
        minimum_severity: events below it are not for it.
    """

    name: str
    minimum_severity: Severity


@dataclass(frozen=True, slots=True)
class Delivery:
    """One notice for one receiver.

    Attributes:
        id: grows with every delivery.
        delivery: what receivers know it by, the same for every attempt.
        receiver: name of the receiver.
        event: id of the event.
        notice: ``opened``, ``escalated``, ``resolved``, or ``noticed`` for a plain notice.
        attempts: how often it was tried in vain.
        held: whether a silence has kept it back.
        created_at: seconds since the epoch.
        lease: proves that the caller holds it.
        message: the event as it was then.
    """

    id: int
    delivery: str
    receiver: str
    event: int
    notice: Notice
    attempts: int
    held: bool
    created_at: float
    lease: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReceiverTotals:
    """What has become of a receiver's deliveries since it was first named.

    Attributes:
        receiver: its name.
        delivered: deliveries it took.
        deferred: attempts that failed and were put off; nothing is dropped by that.
        abandoned: deliveries given up after trying for long.
        silenced: deliveries that a silence has made unnecessary.
        waiting: deliveries not ended yet.
        last_delivered_at: seconds since the epoch, or None.
        last_failed_at: seconds since the epoch, or None.
        last_error: what the last failure was, or None.
    """

    receiver: str
    delivered: int
    deferred: int
    abandoned: int
    silenced: int
    waiting: int
    last_delivered_at: float | None
    last_failed_at: float | None
    last_error: str | None


def note_event(connection: Connection, event: Event) -> None:
    """Leave the notice of an event that was just reported; a mere repeat leaves none.

    Call it in the transaction of the report, which holds the event's row.
    """
    if event.dedup_key is None:
        _note(connection, event, "noticed")
    elif event.count == 1:
        _note(connection, event, "opened")
    elif _RANK[event.severity] > _worst_told(connection, event.id):
        _note(connection, event, "escalated")


def note_resolved(connection: Connection, event: Event) -> None:
    """Leave the notice that an event's cause is gone, in the transaction that resolves it."""
    _note(connection, event, "resolved")


def spread(connection: Connection, recipients: Sequence[Recipient]) -> int:
    """Make deliveries of the notices that have none yet; returns how many notices were spread.

    A receiver gets what is severe enough for it, and the end of whatever it got the beginning of.
    Doing it twice, or in two processes, makes no second delivery.
    """
    columns = tables.alert_notices.c
    query = select(columns.id, columns.event, columns.notice, columns.severity)
    fresh = query.where(columns.spread_at.is_(None)).order_by(columns.id).limit(_SPREAD_AT_ONCE)
    if connection.dialect.name == "postgresql":
        fresh = fresh.with_for_update(skip_locked=True)
    found = connection.execute(fresh).all()
    now = current_time(connection)
    for row in found:
        for recipient in recipients:
            if _is_for(connection, row, recipient):
                _deliver(connection, row, recipient, now)
    if found:
        done = update(tables.alert_notices).where(columns.id.in_([row.id for row in found]))
        connection.execute(done.values(spread_at=now))
    return len(found)


def due_receivers(connection: Connection, names: Collection[str]) -> tuple[bool, set[str]]:
    """Whether notices wait to be spread, and which of these receivers have something due."""
    notices, columns = tables.alert_notices.c, tables.alert_deliveries.c
    fresh = select(notices.id).where(notices.spread_at.is_(None)).limit(1)
    due = select(columns.receiver).where(_due(lease_time(connection)), columns.receiver.in_(names))
    waiting = connection.execute(fresh).first() is not None
    return waiting, set(connection.execute(due.distinct()).scalars())


def lease_due(
    connection: Connection, receiver: str, *, seconds: float, limit: int
) -> list[Delivery]:
    """The receiver's due deliveries, oldest first, now nobody else's for this time.

    Of one event only the oldest delivery is due: what follows waits for it.
    """
    columns, notices = tables.alert_deliveries.c, tables.alert_notices.c
    earlier = tables.alert_deliveries.alias()
    first = ~(
        select(earlier.c.id)
        .where(
            earlier.c.receiver == columns.receiver,
            earlier.c.event == columns.event,
            earlier.c.status == "waiting",
            earlier.c.id < columns.id,
        )
        .exists()
    )
    now = lease_time(connection)
    query = (
        select(columns.id)
        .where(columns.receiver == receiver, _due(now), first)
        .order_by(columns.due_at, columns.id)
        .limit(limit)
    )
    if connection.dialect.name == "postgresql":
        query = query.with_for_update(skip_locked=True, of=tables.alert_deliveries)
    ids = list(connection.execute(query).scalars())
    if not ids:
        return []
    lease = uuid.uuid4().hex
    taken = update(tables.alert_deliveries).where(columns.id.in_(ids))
    connection.execute(taken.values(lease_owner=lease, lease_until=now + seconds))
    held = select(tables.alert_deliveries, notices.notice.label("said"), notices.message)
    joined = held.join(tables.alert_notices, notices.id == columns.notice)
    rows = connection.execute(joined.where(columns.id.in_(ids)).order_by(columns.id))
    return [_read(row) for row in rows]


def settle(
    connection: Connection, delivery: Delivery, status: FinalStatus, error: str | None = None
) -> None:
    """End a delivery, and count it for its receiver.

    Raises:
        LeaseLostError: somebody else has it by now; nothing was changed.
    """
    now = current_time(connection)
    _change(connection, delivery, status=status, finished_at=now, last_error=_short(error))
    _count(connection, delivery.receiver, status)
    if status == "delivered":
        _stamp(connection, delivery.receiver, last_delivered_at=now)
    elif error is not None:
        _stamp(connection, delivery.receiver, last_failed_at=now, last_error=_short(error))


def postpone(connection: Connection, delivery: Delivery, *, seconds: float, error: str) -> None:
    """Try again after this time, because the attempt failed; counted as deferred.

    Raises:
        LeaseLostError: somebody else has it by now; nothing was changed.
    """
    due_at = lease_time(connection) + seconds
    attempts = delivery.attempts + 1
    _change(connection, delivery, attempts=attempts, due_at=due_at, last_error=_short(error))
    _count(connection, delivery.receiver, "deferred")
    now = current_time(connection)
    _stamp(connection, delivery.receiver, last_failed_at=now, last_error=_short(error))


def hold(connection: Connection, delivery: Delivery, *, seconds: float) -> None:
    """Look again after this time, because a silence holds; no attempt was made.

    Raises:
        LeaseLostError: somebody else has it by now; nothing was changed.
    """
    _change(connection, delivery, held=1, due_at=lease_time(connection) + seconds)


def release(connection: Connection, delivery: Delivery) -> None:
    """Give a delivery back at once, as it was; what the caller no longer holds stays as it is."""
    try:
        _change(connection, delivery)
    except LeaseLostError:
        return


def open_at_receiver(connection: Connection, receiver: str, *, limit: int) -> list[Delivery]:
    """The newest delivered notice of each event that still holds, for receivers that forget."""
    columns, notices, events = tables.alert_deliveries.c, tables.alert_notices.c, tables.events.c
    newest = (
        select(func.max(columns.id))
        .join(tables.events, events.id == columns.event)
        .join(tables.alert_notices, notices.id == columns.notice)
        .where(
            columns.receiver == receiver,
            columns.status == "delivered",
            notices.notice.in_(("opened", "escalated")),
            events.state != "resolved",
        )
        .group_by(columns.event)
        .order_by(func.max(columns.id))
        .limit(limit)
    )
    query = (
        select(tables.alert_deliveries, notices.notice.label("said"), notices.message)
        .join(tables.alert_notices, notices.id == columns.notice)
        .where(columns.id.in_(list(connection.execute(newest).scalars())))
        .order_by(columns.id)
    )
    return [_read(row) for row in connection.execute(query)]


def was_told(connection: Connection, receiver: str, event: int) -> bool:
    """Whether the receiver has got an ``opened`` or ``escalated`` notice of this event."""
    columns, notices = tables.alert_deliveries.c, tables.alert_notices.c
    query = (
        select(columns.id)
        .join(tables.alert_notices, notices.id == columns.notice)
        .where(
            columns.receiver == receiver,
            columns.event == event,
            columns.status == "delivered",
            notices.notice.in_(("opened", "escalated")),
        )
    )
    return connection.execute(query.limit(1)).first() is not None


def event_holds(connection: Connection, event: int) -> bool:
    """Whether the event is not resolved yet."""
    query = select(tables.events.c.state).where(tables.events.c.id == event)
    return connection.execute(query).scalar() not in (None, "resolved")


def receiver_totals(connection: Connection) -> list[ReceiverTotals]:
    """The totals of every receiver that a delivery was ever made for, by name."""
    columns, table = tables.alert_deliveries.c, tables.alert_receivers
    query = select(columns.receiver, func.count()).where(columns.status == "waiting")
    rows = connection.execute(query.group_by(columns.receiver))
    waiting = {row[0]: int(row[1]) for row in rows}
    found = {
        row.receiver: ReceiverTotals(**row._asdict(), waiting=waiting.get(row.receiver, 0))
        for row in connection.execute(select(table))
    }
    for name in waiting.keys() - found.keys():
        found[name] = ReceiverTotals(name, 0, 0, 0, 0, waiting[name], None, None, None)
    return [found[name] for name in sorted(found)]


def forget_finished(connection: Connection, *, before: float) -> int:
    """Remove the notices of events that ended before this time, with their deliveries.

    Events stay; so do notices that a delivery still waits for. Returns how many notices went.
    """
    columns, notices, events = tables.alert_deliveries.c, tables.alert_notices.c, tables.events.c
    waiting = select(columns.id).where(columns.event == notices.event, columns.status == "waiting")
    old = (
        select(notices.id)
        .join(tables.events, events.id == notices.event)
        .where(notices.spread_at < before, events.resolved_at < before, ~waiting.exists())
        .limit(_SPREAD_AT_ONCE)
    )
    ids = list(connection.execute(old).scalars())
    connection.execute(delete(tables.alert_deliveries).where(columns.notice.in_(ids)))
    return connection.execute(delete(tables.alert_notices).where(notices.id.in_(ids))).rowcount


# Rows -----------------------------------------------------------------------------------------


def _note(connection: Connection, event: Event, notice: Notice) -> None:
    message = {
        "event": event.id,
        "drafter": event.drafter,
        "kind": event.kind,
        "severity": event.severity,
        "title": event.title,
        "dedup_key": event.dedup_key,
        "details": dict(event.details),
        "opened_at": event.opened_at,
        "resolved_at": event.resolved_at,
        "count": event.count,
    }
    connection.execute(
        insert(tables.alert_notices).values(
            event=event.id,
            notice=notice,
            severity=event.severity,
            created_at=current_time(connection),
            message=json_text(message),
        )
    )


def _worst_told(connection: Connection, event: int) -> int:
    """The highest rank that a notice of this event has named; -1 for none."""
    columns = tables.alert_notices.c
    query = select(columns.severity).where(columns.event == event)
    return max((_RANK[name] for name in connection.execute(query).scalars()), default=-1)


def _is_for(connection: Connection, row: Row[*tuple[Any, ...]], recipient: Recipient) -> bool:
    if row.notice != "resolved":
        return _RANK[row.severity] >= _RANK[recipient.minimum_severity]
    columns = tables.alert_deliveries.c
    begun = select(columns.id).where(columns.event == row.event, columns.receiver == recipient.name)
    return connection.execute(begun.limit(1)).first() is not None


def _deliver(
    connection: Connection, row: Row[*tuple[Any, ...]], recipient: Recipient, now: float
) -> None:
    values = {
        "notice": row.id,
        "event": row.event,
        "receiver": checked_identifier("receiver", recipient.name),
        "delivery": str(uuid.uuid4()),
        "status": "waiting",
        "attempts": 0,
        "held": 0,
        "created_at": now,
        "due_at": lease_time(connection),
    }
    statement = insert_for(connection.dialect.name, tables.alert_deliveries).values(values)
    connection.execute(statement.on_conflict_do_nothing(index_elements=["notice", "receiver"]))


def _due(now: float) -> ColumnElement[bool]:
    columns = tables.alert_deliveries.c
    free = or_(columns.lease_until.is_(None), columns.lease_until <= now)
    return and_(columns.status == "waiting", columns.due_at <= now, free)


def _change(connection: Connection, delivery: Delivery, **values: Any) -> None:
    """Write what became of a leased delivery, and end its lease."""
    columns = tables.alert_deliveries.c
    mine = update(tables.alert_deliveries).where(
        columns.id == delivery.id,
        columns.status == "waiting",
        columns.lease_owner == delivery.lease,
    )
    done = connection.execute(mine.values(lease_owner=None, lease_until=None, **values))
    if done.rowcount == 0:
        raise LeaseLostError(delivery.delivery)


def _count(connection: Connection, receiver: str, name: str) -> None:
    """Raise one total of a receiver."""
    table = tables.alert_receivers
    zeros = dict.fromkeys(("delivered", "deferred", "abandoned", "silenced"), 0)
    statement = insert_for(connection.dialect.name, table)
    upsert = statement.values({"receiver": receiver, **zeros, name: 1}).on_conflict_do_update(
        index_elements=["receiver"], set_={name: table.c[name] + 1}
    )
    connection.execute(upsert)


def _stamp(connection: Connection, receiver: str, **values: Any) -> None:
    table = tables.alert_receivers
    connection.execute(update(table).where(table.c.receiver == receiver).values(**values))


def _short(error: str | None) -> str | None:
    return None if error is None else error[:_LONGEST_ERROR]


def _read(row: Row[Any]) -> Delivery:
    return Delivery(
        id=row.id,
        delivery=row.delivery,
        receiver=row.receiver,
        event=row.event,
        notice=row.said,
        attempts=row.attempts,
        held=bool(row.held),
        created_at=row.created_at,
        lease=row.lease_owner or "",
        message=read_json(row.message),
    )
