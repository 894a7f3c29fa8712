"""Who changed what: rows that are only ever added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from monitoring.store import tables
from monitoring.store.database import current_time
from monitoring.store.fields import checked_text, clamped, is_slug, json_text, read_json

__all__ = ["AuditRow", "list_audit", "record"]


@dataclass(frozen=True)
class AuditRow:
    """One change.

    Attributes:
        id: grows with every row.
        at: seconds since the epoch.
        actor: token name, ``"worker"`` or ``"anonymous"``.
        action: ``"publish"``, ``"register"`` ….
        drafter: what it was about, or None.
        details: plain JSON.
        request_id: request that asked for it, or None.
    """

    id: int
    at: float
    actor: str
    action: str
    drafter: str | None
    details: Mapping[str, Any]
    request_id: str | None


def record(
    connection: Connection,
    actor: str,
    action: str,
    drafter: str | None = None,
    details: Mapping[str, Any] | None = None,
    request_id: str | None = None,
) -> None:
    """Add a row in the transaction of the change itself.

    Raises:
        InvalidInputError: a text the database cannot hold, or details that are no JSON.
    """
    connection.execute(
        insert(tables.audit).values(
            at=current_time(connection),
            actor=checked_text("actor", actor),
            action=checked_text("action", action),
            drafter=drafter,
            details=json_text({} if details is None else details),
            request_id=None if request_id is None else checked_text("request_id", request_id),
        )
    )


def list_audit(
    connection: Connection,
    *,
    drafter: str | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[AuditRow]:
    """The newest rows first.

    Args:
        connection: any connection of the store.
        drafter: only rows about this drafter.
        before: only rows with a smaller id: the last id of the page before.
        limit: at most this many.
    """
    query = select(tables.audit).order_by(tables.audit.c.id.desc()).limit(clamped(limit))
    if drafter is not None and not is_slug(drafter):
        return []
    if drafter is not None:
        query = query.where(tables.audit.c.drafter == drafter)
    if before is not None:
        query = query.where(tables.audit.c.id < clamped(before))
    return [_audit_row(row) for row in connection.execute(query)]


def _audit_row(row: Row[Any]) -> AuditRow:
    values = row._asdict()
    return AuditRow(**(values | {"details": read_json(row.details)}))
