"""What the pages count, counted by the database: a fleet of thousands costs a few rows.

Everything takes a connection, so that one page is one snapshot.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Case, Connection, and_, case, func, select

from monitoring.store import tables
from monitoring.store.engines import EngineRow
from monitoring.store.fields import is_slug

__all__ = [
    "ENGINE_STATUSES",
    "EngineCounts",
    "EngineStatus",
    "OpenEvents",
    "ReportHead",
    "TelemetryMark",
    "drift_documents",
    "engine_counts",
    "engine_page",
    "newest_reports",
    "open_events",
    "report_heads",
    "telemetry_marks",
]

EngineStatus = Literal["on_champion", "behind", "silent", "unreported"]
# Of the same words as api.views.engine_view; a test compares the two.
ENGINE_STATUSES: Final[tuple[EngineStatus, ...]] = (
    "silent",
    "behind",
    "unreported",
    "on_champion",
)


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """How many engines of a drafter are where."""

    on_champion: int = 0
    behind: int = 0
    silent: int = 0
    unreported: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.on_champion + self.behind + self.silent + self.unreported


@dataclass(frozen=True, slots=True)
class OpenEvents:
    """Events of a drafter that are not resolved.

    Attributes:
        open: nobody has seen them.
        acknowledged: somebody looks after them.
        critical: those of both that are critical.
    """

    open: int = 0
    acknowledged: int = 0
    critical: int = 0


@dataclass(frozen=True, slots=True)
class TelemetryMark:
    """Rows since registration, and when the last came (seconds since the epoch)."""

    rows: int = 0
    rejected: int = 0
    last_received_at: float | None = None


@dataclass(frozen=True, slots=True)
class ReportHead:
    """A report without its document."""

    id: int
    drafter: str
    revision: int
    created_at: float


def engine_counts(
    connection: Connection, *, now: float, silent_after: float, drafter: str | None = None
) -> dict[str, EngineCounts]:
    """Engines by drafter and status.

    Args:
        connection: any connection of the store.
        now: seconds since the epoch.
        silent_after: age of the last poll from which an engine counts as silent.
        drafter: only this one.
    """
    each = select(tables.engines.c.drafter, _status(now, silent_after).label("status")).join_from(
        tables.engines, tables.drafters, _SAME_DRAFTER
    )
    if drafter is not None:
        each = each.where(tables.engines.c.drafter == drafter)
    # A query of its own: PostgreSQL groups by an expression only where its parameters are the same.
    told = each.subquery()
    query = select(told.c.drafter, told.c.status, func.count().label("engines")).group_by(
        told.c.drafter, told.c.status
    )
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for row in connection.execute(query):
        found[row.drafter][row.status] = row.engines
    return {name: EngineCounts(**counts) for name, counts in found.items()}


def engine_page(
    connection: Connection,
    drafter: str,
    *,
    now: float,
    silent_after: float,
    status: EngineStatus | None = None,
    text: str = "",
    offset: int = 0,
    limit: int = 50,
) -> list[EngineRow]:
    """Engines that need a look first: silent, then behind, then the others; by id within.

    Args:
        connection: any connection of the store.
        drafter: name of the drafter.
        now: seconds since the epoch.
        silent_after: age of the last poll from which an engine counts as silent.
        status: only these.
        text: only ids that hold this text.
        offset: engines of the pages before.
        limit: at most this many.
    """
    if not is_slug(drafter):
        return []
    columns = tables.engines.c
    found = _status(now, silent_after)
    rank = case({name: index for index, name in enumerate(ENGINE_STATUSES)}, value=found)
    query = (
        select(tables.engines)
        .join_from(tables.engines, tables.drafters, _SAME_DRAFTER)
        .where(columns.drafter == drafter)
        .order_by(rank, columns.engine)
        .offset(offset)
        .limit(limit)
    )
    if status is not None:
        query = query.where(found == status)
    if text:
        query = query.where(func.lower(columns.engine).contains(text.lower(), autoescape=True))
    return [EngineRow(**row._asdict()) for row in connection.execute(query)]


def open_events(connection: Connection) -> dict[str, OpenEvents]:
    """Unresolved events by drafter; those of no drafter are under the empty name."""
    columns = tables.events.c
    query = (
        select(columns.drafter, columns.state, columns.severity, func.count().label("events"))
        .where(columns.state != "resolved")
        .group_by(columns.drafter, columns.state, columns.severity)
    )
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in connection.execute(query):
        counts = found[row.drafter or ""]
        counts[row.state] += row.events
        counts["critical"] += row.events if row.severity == "critical" else 0
    return {name: OpenEvents(**counts) for name, counts in found.items()}


def telemetry_marks(connection: Connection) -> dict[str, TelemetryMark]:
    """Totals of every drafter."""
    columns = tables.telemetry_counters.c
    query = select(columns.drafter, columns.rows, columns.rejected, columns.last_received_at)
    return {
        row.drafter: TelemetryMark(row.rows, row.rejected, row.last_received_at)
        for row in connection.execute(query)
    }


def drift_documents(connection: Connection) -> dict[str, bytes]:
    """The drift document of every drafter that has one."""
    columns = tables.monitor_states.c
    rows = connection.execute(select(columns.drafter, columns.document))
    return {row.drafter: bytes(row.document) for row in rows}


def newest_reports(connection: Connection) -> dict[str, ReportHead]:
    """The newest evaluation of every drafter that has one."""
    columns = tables.reports.c
    newest = (
        select(func.max(columns.id))
        .where(columns.kind == "evaluation")
        .group_by(columns.drafter)
        .scalar_subquery()
    )
    rows = connection.execute(_HEADS.where(columns.id.in_(newest)))
    return {row.drafter: ReportHead(**row._asdict()) for row in rows}


def report_heads(connection: Connection, drafter: str, *, limit: int) -> list[ReportHead]:
    """The newest evaluations of a drafter, oldest first."""
    columns = tables.reports.c
    mine = and_(columns.drafter == drafter, columns.kind == "evaluation")
    query = _HEADS.where(mine).order_by(columns.id.desc()).limit(limit)
    return [ReportHead(**row._asdict()) for row in connection.execute(query)][::-1]


_SAME_DRAFTER: Final = tables.engines.c.drafter == tables.drafters.c.name
_HEADS: Final = select(
    tables.reports.c.id,
    tables.reports.c.drafter,
    tables.reports.c.revision,
    tables.reports.c.created_at,
)


def _status(now: float, silent_after: float) -> Case[Any]:
    """Status of an engine, as :func:`api.views.engine_view` names it."""
    columns = tables.engines.c
    return case(
        (now - columns.seen_at > silent_after, "silent"),
        (columns.applied_publication.is_(None), "unreported"),
        (columns.applied_publication >= tables.drafters.c.publication, "on_champion"),
        else_="behind",
    )
