"""Times in which nobody is to be told: of a drafter, of a kind of event, or of everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, insert, or_, select, update

from calib.errors import InvalidInputError
from monitoring.store import audit, tables
from monitoring.store.database import current_time
from monitoring.store.drafter_rows import state_of
from monitoring.store.errors import NotFoundError
from monitoring.store.events import EVENT_KINDS
from monitoring.store.fields import checked_text, clamped

__all__ = [
    "LONGEST_SECONDS",
    "Silence",
    "add_silence",
    "get_silence",
    "list_silences",
    "remove_silence",
    "silenced_until",
]

LONGEST_SECONDS: Final = 90 * 24 * 3600.0
"""Longest silence: whoever wants more has a receiver too many."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which events that match are not told.

    Attributes:
        id: grows with every silence.
        drafter: whose events; None for any, and for those of no drafter.
        kind: kind of event; None for any. One that an older version stored may match nothing.
        starts_at: seconds since the epoch.
        ends_at: seconds since the epoch.
        created_at: seconds since the epoch.
        created_by: who asked for it.
        reason: why.
        removed_at: when somebody ended it early, or None.
        removed_by: who did, or None.
    """

    id: int
    drafter: str | None
    kind: str | None
    starts_at: float
    ends_at: float
    created_at: float
    created_by: str
    reason: str
    removed_at: float | None
    removed_by: str | None


def add_silence(
    connection: Connection,
    *,
    ends_at: float,
    reason: str,
    actor: str,
    starts_at: float | None = None,
    drafter: str | None = None,
    kind: str | None = None,
    request_id: str | None = None,
) -> Silence:
    """A stored silence, with its audit row.

    Args:
        connection: a write transaction.
        ends_at: seconds since the epoch, at most 90 days after the start.
        reason: why, for whoever wonders.
        actor: who asks.
        starts_at: seconds since the epoch; None begins now.
        drafter: whose events; None for all.
        kind: one of :data:`monitoring.store.events.EVENT_KINDS`; None for all.
        request_id: request that asked for it.

    Raises:
        InvalidInputError: an end that is over, before its start or too far away, or a kind that
            no event has.
        NotFoundError: no such drafter.
    """
    now = current_time(connection)
    begins = now if starts_at is None else starts_at
    if not max(now, begins) < ends_at <= begins + LONGEST_SECONDS:
        raise InvalidInputError("ends_at", ends_at, "end it after now and within 90 days")
    if kind is not None and kind not in EVENT_KINDS:
        raise InvalidInputError("kind", kind, f"give one of {', '.join(EVENT_KINDS)}")
    if drafter is not None:
        state_of(connection, drafter)
    values = {
        "drafter": drafter,
        "kind": kind,
        "starts_at": begins,
        "ends_at": ends_at,
        "created_at": now,
        "created_by": checked_text("actor", actor),
        "reason": checked_text("reason", reason),
    }
    made = insert(tables.silences).values(values).returning(tables.silences.c.id)
    silence = get_silence(connection, connection.execute(made).scalar_one())
    details = {"silence": silence.id, "kind": kind, "ends_at": ends_at, "reason": reason}
    audit.record(connection, actor, "silence", drafter, details, request_id)
    return silence


def get_silence(connection: Connection, identifier: int) -> Silence:
    """The silence with this id.

    Raises:
        NotFoundError: no such silence.
    """
    query = select(tables.silences).where(tables.silences.c.id == clamped(identifier))
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("silence", identifier)
    return _read(row)


def list_silences(
    connection: Connection, *, over_too: bool = False, limit: int = 500
) -> list[Silence]:
    """Silences that hold or will hold, newest first.

    Args:
        connection: any connection of the store.
        over_too: also those that have ended or were removed.
        limit: at most this many.
    """
    columns = tables.silences.c
    query = select(tables.silences).order_by(columns.id.desc()).limit(clamped(limit))
    if not over_too:
        now = current_time(connection)
        query = query.where(columns.removed_at.is_(None), columns.ends_at > now)
    return [_read(row) for row in connection.execute(query)]


def remove_silence(
    connection: Connection, identifier: int, *, actor: str, request_id: str | None = None
) -> Silence:
    """The silence, ended now; one that was removed before stays as it was.

    Raises:
        NotFoundError: no such silence.
    """
    columns = tables.silences.c
    ended = update(tables.silences).where(
        columns.id == clamped(identifier), columns.removed_at.is_(None)
    )
    values = {"removed_at": current_time(connection), "removed_by": checked_text("actor", actor)}
    changed = connection.execute(ended.values(values)).rowcount
    silence = get_silence(connection, identifier)
    if changed:
        details = {"silence": silence.id}
        audit.record(connection, actor, "unsilence", silence.drafter, details, request_id)
    return silence


def silenced_until(connection: Connection, drafter: str | None, kind: str) -> float | None:
    """When the last silence ends that holds now for such an event; None where none holds."""
    columns = tables.silences.c
    now = current_time(connection)
    query = select(columns.ends_at).where(
        columns.removed_at.is_(None),
        columns.starts_at <= now,
        columns.ends_at > now,
        or_(columns.drafter.is_(None), columns.drafter == drafter),
        or_(columns.kind.is_(None), columns.kind == kind),
    )
    return max(connection.execute(query).scalars(), default=None)


def _read(row: Row[Any]) -> Silence:
    return Silence(**row._asdict())
