"""Reports as they were computed, the newest of each kind in front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, delete, insert, select

from monitoring.store import tables, tracking_outbox
from monitoring.store.fields import checked_text, clamped

__all__ = [
    "PAGE_KIND",
    "PICTURE_KIND",
    "Report",
    "latest_report",
    "list_reports",
    "put_report",
]

KEPT_REPORTS: Final = 200  # of each drafter and kind: a curve over time, not an archive

PAGE_KIND: Final = "evaluation.html"
PICTURE_KIND: Final = "evaluation.png"
# What a report can be drawn from again is kept once.
_KEPT: Final = {PAGE_KIND: 1, PICTURE_KIND: 1}


@dataclass(frozen=True)
class Report:
    """One report.

    Attributes:
        id: grows with every report.
        drafter: name of the drafter.
        kind: ``"evaluation"``, its page or its picture ….
        revision: revision it is about.
        through_batch: newest batch that entered it, or None.
        created_at: seconds since the epoch.
        document: JSON bytes; HTML of a page, PNG of a picture.
    """

    id: int
    drafter: str
    kind: str
    revision: int
    through_batch: int | None
    created_at: float
    document: bytes


def put_report(
    connection: Connection,
    drafter: str,
    kind: str,
    document: bytes,
    *,
    revision: int,
    through_batch: int | None,
    created_at: float,
    told: Mapping[str, Any] | None = None,
) -> Report:
    """The stored report; of each kind the newest 200 are kept, of pages and pictures the newest.

    Args:
        connection: a write transaction.
        drafter: name of the drafter.
        kind: kind of report.
        document: JSON bytes.
        revision: revision it is about.
        through_batch: newest batch that entered it, or None.
        created_at: seconds since the epoch.
        told: what the tracking server is to be told of it, as plain JSON; None tells nothing. It
            outlives the report, so a long outage loses none of it.

    Raises:
        ConflictError: no such drafter.
    """
    columns = tables.reports.c
    values = {
        "drafter": drafter,
        "kind": checked_text("kind", kind),
        "revision": revision,
        "through_batch": through_batch,
        "created_at": created_at,
        "document": document,
    }
    number = connection.execute(insert(tables.reports).values(values).returning(columns.id))
    query = select(tables.reports).where(columns.id == number.scalar_one())
    row = connection.execute(query).one()
    if told is not None:
        about = {"report": row.id, "revision": revision, "created_at": created_at}
        tracking_outbox.record(connection, drafter, "report", {**told, **about})
    kept = (
        select(columns.id)
        .where(columns.drafter == drafter, columns.kind == kind)
        .order_by(columns.id.desc())
        .offset(_KEPT.get(kind, KEPT_REPORTS))
        .limit(1)
    )
    oldest = connection.execute(kept).scalar()
    if oldest is not None:
        connection.execute(
            delete(tables.reports).where(
                columns.drafter == drafter, columns.kind == kind, columns.id <= oldest
            )
        )
    return _read(row)


def latest_report(connection: Connection, drafter: str, kind: str = "evaluation") -> Report | None:
    """The newest report of this kind, or None."""
    found = list_reports(connection, drafter, kind, limit=1)
    return found[0] if found else None


def list_reports(
    connection: Connection,
    drafter: str,
    kind: str = "evaluation",
    *,
    before: int | None = None,
    limit: int = 100,
) -> list[Report]:
    """The newest reports of this kind first.

    Args:
        connection: any connection of the store.
        drafter: name of the drafter.
        kind: kind of report.
        before: only smaller ids: the last id of the page before.
        limit: at most this many.
    """
    columns = tables.reports.c
    query = select(tables.reports).where(columns.drafter == drafter, columns.kind == kind)
    if before is not None:
        query = query.where(columns.id < clamped(before))
    newest = query.order_by(columns.id.desc()).limit(clamped(limit))
    return [_read(row) for row in connection.execute(newest)]


def _read(row: Row[Any]) -> Report:
    return Report(**(row._asdict() | {"document": bytes(row.document)}))
