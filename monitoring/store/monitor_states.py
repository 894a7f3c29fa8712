"""How far the closed loop has read each drafter's telemetry, and what it knows by then.

State and document are written in the transaction of the decisions they led to, so that a restart
neither repeats nor skips a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from monitoring.store import tables
from monitoring.store.database import current_time
from monitoring.store.drafter_rows import state_of
from monitoring.store.errors import ConflictError
from monitoring.store.fields import is_slug
from monitoring.store.upserts import insert_for

__all__ = ["MonitorDocument", "MonitorRow", "load", "load_document", "save"]


@dataclass(frozen=True)
class MonitorDocument:
    """What readers see of a drafter's loop.

    Attributes:
        drafter: name of the drafter.
        consumed_through: id of the newest telemetry batch that entered.
        document: canonical JSON of the drift document.
        updated_at: seconds since the epoch.
    """

    drafter: str
    consumed_through: int
    document: bytes
    updated_at: float


@dataclass(frozen=True)
class MonitorRow(MonitorDocument):
    """What the loop itself goes on from.

    Attributes:
        state: bytes of the monitor's state.
    """

    state: bytes


def load(connection: Connection, drafter: str) -> MonitorRow | None:
    """What was saved last; None before the loop has read a batch of this drafter."""
    if not is_slug(drafter):
        return None
    table = tables.monitor_states
    row = connection.execute(select(table).where(table.c.drafter == drafter)).one_or_none()
    if row is None:
        return None
    return MonitorRow(
        drafter=row.drafter,
        consumed_through=row.consumed_through,
        document=bytes(row.document),
        updated_at=row.updated_at,
        state=bytes(row.state),
    )


def load_document(connection: Connection, drafter: str) -> MonitorDocument | None:
    """:func:`load` without the state, which is large and of no use to readers."""
    if not is_slug(drafter):
        return None
    columns = tables.monitor_states.c
    query = select(
        columns.drafter, columns.consumed_through, columns.document, columns.updated_at
    ).where(columns.drafter == drafter)
    row = connection.execute(query).one_or_none()
    if row is None:
        return None
    return MonitorDocument(row.drafter, row.consumed_through, bytes(row.document), row.updated_at)


def save(
    connection: Connection,
    drafter: str,
    *,
    consumed_through: int,
    state: bytes,
    document: bytes,
) -> MonitorRow:
    """Replace what was saved before.

    Args:
        connection: the transaction of the decisions that the state led to.
        drafter: name of the drafter.
        consumed_through: id of the newest telemetry batch in ``state``; never goes back.
        state: bytes of the monitor's state.
        document: canonical JSON of the drift document.

    Raises:
        NotFoundError: no such drafter.
        ConflictError: more batches were consumed already: another process was here.
    """
    state_of(connection, drafter)
    table = tables.monitor_states
    values = {
        "consumed_through": consumed_through,
        "updated_at": current_time(connection),
        "document": document,
        "state": state,
    }
    statement = (
        insert_for(connection.dialect.name, table)
        .values(drafter=drafter, **values)
        .on_conflict_do_update(
            index_elements=["drafter"],
            set_=values,
            where=table.c.consumed_through <= consumed_through,
        )
        .returning(table.c.updated_at)
    )
    updated_at = connection.execute(statement).scalar_one_or_none()
    if updated_at is None:
        reason = f"batches beyond {consumed_through} were consumed already; load the state again"
        raise ConflictError("monitor state", drafter, reason)
    return MonitorRow(drafter, consumed_through, document, updated_at, state)
