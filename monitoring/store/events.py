"""What the person on call should see: one open event per cause, however often it repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from sqlalchemy import Connection, Row, select, text, update

from calib.errors import InvalidInputError
from monitoring.store import alert_outbox, tables
from monitoring.store.database import current_time
from monitoring.store.errors import ConflictError, NotFoundError
from monitoring.store.fields import (
    checked_identifier,
    checked_text,
    clamped,
    is_slug,
    json_text,
    read_json,
)
from monitoring.store.upserts import insert_for

__all__ = [
    "EVENT_KINDS",
    "SEVERITIES",
    "Event",
    "EventKind",
    "EventState",
    "Severity",
    "acknowledge",
    "get_event",
    "list_events",
    "open_event",
    "resolve",
    "resolve_event",
]

Severity = Literal["info", "warning", "critical"]
EventState = Literal["open", "acknowledged", "resolved"]
EventKind = Literal[
    "challenger",  # a fit is proposed
    "data_quality",  # telemetry cannot be trusted, and holds recalibration
    "drift",  # confidence no longer says what happens
    "job_failed",
    "promoted",  # by the gate
    "promotion_refused",
    "publication",  # another revision is served
    "recalibration_refused",
    "recalibration_scheduled",
    "rolled_back",  # by the watch after a promotion
    "tracking_failed",  # the tracking server will never take an entry
    "tracking_unreachable",
]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)


@dataclass(frozen=True)
class Event:
    """Something that happened, or that still holds.

    Attributes:
        id: grows with every event.
        drafter: what it is about, or None.
        kind: machine-readable word.
        severity: ``info``, ``warning`` or ``critical``.
        title: one line for people.
        details: plain JSON.
        state: ``open``, ``acknowledged`` or ``resolved``; plain notices start resolved.
        opened_at: seconds since the epoch.
        updated_at: time of the last repeat or change of state.
        acknowledged_by: who saw it, or None.
        resolved_at: when the cause was gone, or None.
        dedup_key: names the cause; None for a plain notice.
        count: how often it was reported.
    """

    id: int
    drafter: str | None
    kind: str
    severity: Severity
    title: str
    details: Mapping[str, Any]
    state: EventState
    opened_at: float
    updated_at: float
    acknowledged_by: str | None
    resolved_at: float | None
    dedup_key: str | None
    count: int


def open_event(
    connection: Connection,
    kind: EventKind,
    severity: Severity,
    title: str,
    *,
    drafter: str | None = None,
    details: Mapping[str, Any] | None = None,
    dedup_key: str | None = None,
) -> Event:
    """Report something.

    With a ``dedup_key`` there is one unresolved event per key: a repeat raises its count and
    replaces severity, title and details, and whoever acknowledged it is not asked again. Without
    one it is a plain notice, resolved from the start.

    Raises:
        InvalidInputError: an unknown severity or a text no database can hold.
    """
    if severity not in SEVERITIES:
        raise InvalidInputError("severity", severity, f"give one of {SEVERITIES}")
    now = current_time(connection)
    notice = dedup_key is None
    values = {
        "drafter": drafter,
        "kind": checked_text("kind", kind),
        "severity": severity,
        "title": checked_text("title", title),
        "details": json_text({} if details is None else details),
        "state": "resolved" if notice else "open",
        "opened_at": now,
        "updated_at": now,
        "resolved_at": now if notice else None,
        "dedup_key": None if dedup_key is None else checked_identifier("dedup_key", dedup_key),
        "count": 1,
    }
    repeated = ("severity", "title", "details", "updated_at")
    statement = (
        insert_for(connection.dialect.name, tables.events)
        .values(**values)
        .on_conflict_do_update(
            index_elements=["dedup_key"],
            index_where=text("state <> 'resolved'"),
            set_={name: values[name] for name in repeated} | {"count": tables.events.c.count + 1},
        )
        .returning(tables.events.c.id)
    )
    event = get_event(connection, connection.execute(statement).scalar_one())
    alert_outbox.note_event(connection, event)
    return event


def get_event(connection: Connection, identifier: int) -> Event:
    """The event with this id.

    Raises:
        NotFoundError: no such event.
    """
    query = select(tables.events).where(tables.events.c.id == clamped(identifier))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("event", identifier)
    return _read(row)


def acknowledge(connection: Connection, identifier: int, actor: str) -> Event:
    """The event, seen by ``actor``; who saw it first stays.

    Raises:
        NotFoundError: no such event.
        ConflictError: it is resolved already.
    """
    columns = tables.events.c
    statement = (
        update(tables.events)
        .where(columns.id == clamped(identifier), columns.state == "open")
        .values(
            state="acknowledged",
            acknowledged_by=checked_text("actor", actor),
            updated_at=current_time(connection),
        )
    )
    connection.execute(statement)
    event = get_event(connection, identifier)
    if event.state == "resolved":
        raise ConflictError("event", identifier, "it is resolved already")
    return event


def resolve(connection: Connection, dedup_key: str) -> Event | None:
    """The event whose cause is gone, now resolved; None where none was open."""
    columns = tables.events.c
    now = current_time(connection)
    statement = (
        update(tables.events)
        .where(columns.dedup_key == dedup_key, columns.state != "resolved")
        .values(state="resolved", resolved_at=now, updated_at=now)
        .returning(columns.id)
    )
    found = connection.execute(statement).scalar_one_or_none()
    if found is None:
        return None
    event = get_event(connection, found)
    alert_outbox.note_resolved(connection, event)
    return event


def resolve_event(connection: Connection, identifier: int) -> Event:
    """The event, resolved by hand; one that is resolved already stays as it is.

    Whoever was told of it is told that it is over. A cause that still holds opens a new event when
    it is reported next.

    Raises:
        NotFoundError: no such event.
    """
    columns = tables.events.c
    now = current_time(connection)
    statement = (
        update(tables.events)
        .where(columns.id == clamped(identifier), columns.state != "resolved")
        .values(state="resolved", resolved_at=now, updated_at=now)
    )
    changed = connection.execute(statement).rowcount
    event = get_event(connection, identifier)
    if changed:
        alert_outbox.note_resolved(connection, event)
    return event


def list_events(
    connection: Connection,
    *,
    drafter: str | None = None,
    state: EventState | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[Event]:
    """The newest events first.

    Args:
        connection: any connection of the store.
        drafter: only events about this drafter.
        state: only events in this state.
        before: only smaller ids: the last id of the page before.
        limit: at most this many.
    """
    columns = tables.events.c
    query = select(tables.events).order_by(columns.id.desc()).limit(clamped(limit))
    if drafter is not None and not is_slug(drafter):
        return []
    if drafter is not None:
        query = query.where(columns.drafter == drafter)
    if state is not None:
        query = query.where(columns.state == state)
    if before is not None:
        query = query.where(columns.id < clamped(before))
    return [_read(row) for row in connection.execute(query)]


def _read(row: Row[Any]) -> Event:
    return Event(**(row._asdict() | {"details": read_json(row.details)}))
