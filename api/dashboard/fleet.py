"""The fleet as one page shows it: every drafter in a line, the most urgent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from sqlalchemy import Connection

from api.dashboard import fleet_queries
from api.dashboard.drift_document import DriftDocument, read_drift
from api.dashboard.fleet_queries import EngineCounts, OpenEvents, TelemetryMark
from api.dashboard.history_charts import sparkline
from api.dashboard.report_shelf import ReportShelf, ReportSummary
from api.dashboard.silence_queries import Silences, load_silences
from api.dashboard.statuses import STATUSES, Findings, Status, headline, status_of
from monitoring.reports.markup import Markup
from monitoring.store.drafter_rows import DrafterState, all_states
from monitoring.store.events import SEVERITIES, Event, list_events

__all__ = ["PAGE_ROWS", "SORTS", "FleetPage", "FleetQuery", "FleetRow", "load_fleet"]

PAGE_ROWS: Final = 50
_MOST_EVENTS: Final = 6
_LONGEST_TEXT: Final = 128
_SPARK_POINTS: Final = 24


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A drafter in the list.

    Attributes:
        state: its aliases and publication.
        status: one word.
        headline: one sentence.
        report: its newest report, or None.
        drift: its drift document, or None.
        engines: who runs what.
        telemetry: totals.
        events: unresolved ones.
    """

    state: DrafterState
    status: Status
    headline: str
    report: ReportSummary | None
    drift: DriftDocument | None
    engines: EngineCounts
    telemetry: TelemetryMark
    events: OpenEvents

    @property
    def name(self) -> str:
        """Its name."""
        return self.state.drafter.name

    @property
    def models(self) -> str:
        """Target and draft model."""
        key = self.state.drafter.key
        return f"{key.target_model} ← {key.draft_model}"

    @property
    def short_models(self) -> str:
        """The same without the names of organisations."""
        key = self.state.drafter.key
        parts = (name.rpartition("/")[2] for name in (key.target_model, key.draft_model))
        return " ← ".join(parts)

    @property
    def evidence_share(self) -> float:
        """Evidence as a share of the act level; 0 without tests."""
        worst = self.drift.worst if self.drift is not None else None
        return 0.0 if worst is None else worst.share

    @property
    def spark(self) -> Markup | None:
        """Evidence over time as a small line; None without a history."""
        known = [] if self.drift is None else [log10 for _, log10 in self.drift.evidence]
        if self.drift is None or len(known) < 2:
            return None
        step = -(-len(known) // _SPARK_POINTS) or 1
        act = self.drift.threshold_log10("act")
        label = "Evidence of drift over rows" + ("" if act is None else ", dashed: act level")
        return sparkline(known[::-1][::step][::-1], limit=act, label=label)


# By name of the column: what it sorts by, and whether the largest comes first.
SORTS: Final[Mapping[str, tuple[Callable[[FleetRow], Any], bool]]] = {
    "status": (lambda row: (row.status.rank, -row.evidence_share, row.name), False),
    "name": (lambda row: row.name, False),
    "ece": (lambda row: (row.report.ece if row.report else None) or 0.0, True),
    "evidence": (lambda row: row.evidence_share, True),
    "revision": (lambda row: row.state.publication, True),
    "engines": (lambda row: row.engines.total, True),
    "rows": (lambda row: row.telemetry.rows, True),
}


@dataclass(frozen=True, slots=True)
class FleetQuery:
    """What part of the fleet to show, and in which order.

    Attributes:
        text: words that name or models must hold.
        status: only this status, or empty.
        sort: a key of :data:`SORTS`.
        turned: whether the order is the opposite of the usual one.
        page: from 1.
    """

    text: str = ""
    status: str = ""
    sort: str = "status"
    turned: bool = False
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> FleetQuery:
        """The query of an address; what it does not understand is left out."""
        status, sort = parameters.get("status", ""), parameters.get("sort", "")
        page = parameters.get("page", "1")
        return cls(
            text=parameters.get("q", "")[:_LONGEST_TEXT].strip(),
            status=status if status in STATUSES else "",
            sort=sort if sort in SORTS else "status",
            turned=parameters.get("order") == "turned",
            page=min(10**6, max(1, int(page))) if page.isdecimal() and len(page) < 7 else 1,
        )

    def address(self, **changes: Any) -> str:
        """Address of the page with these changes."""
        new = replace(self, **changes)
        parts = {
            "q": new.text,
            "status": new.status,
            "sort": "" if new.sort == "status" else new.sort,
            "order": "turned" if new.turned else "",
            "page": "" if new.page == 1 else new.page,
        }
        query = urlencode({name: value for name, value in parts.items() if value})
        return f"/?{query}" if query else "/"

    def sorted_by(self, column: str) -> str:
        """Address of the page in the order of a column; the other way round when it is already."""
        return self.address(sort=column, turned=self.sort == column and not self.turned, page=1)

    def direction(self, column: str) -> str | None:
        """``aria-sort`` of a column; None where the page is in another order."""
        if column != self.sort:
            return None
        return "descending" if SORTS[column][1] != self.turned else "ascending"

    def matches(self, row: FleetRow) -> bool:
        """Whether a drafter is to be shown."""
        if self.status and row.status.word != self.status:
            return False
        told = f"{row.name} {row.models}".lower()
        return all(word in told for word in self.text.lower().split())


@dataclass(frozen=True, slots=True)
class FleetPage:
    """One page of the fleet.

    Attributes:
        query: what was asked for.
        rows: drafters of this page.
        total: drafters registered.
        matched: drafters that match the query.
        pages: how many pages they fill, at least 1.
        counts: drafters by status word, of all registered.
        engines: engines of the whole fleet.
        events: newest events that nobody has seen.
        silences: what is not told at present.
    """

    query: FleetQuery
    rows: list[FleetRow]
    total: int
    matched: int
    pages: int
    counts: Mapping[str, int]
    engines: EngineCounts
    events: list[Event]
    silences: Silences

    @property
    def summary(self) -> str:
        """The fleet in one line."""
        told = [
            f"{self.counts[word]} {status.label.lower()}"
            for word, status in STATUSES.items()
            if self.counts.get(word)
        ]
        noun = "drafter" if self.total == 1 else "drafters"
        return f"{self.total} {noun}" + (f": {', '.join(told)}" if told else "")


def load_fleet(
    connection: Connection,
    shelf: ReportShelf,
    query: FleetQuery,
    *,
    now: float,
    silent_after: float,
    stale_after: float,
) -> FleetPage:
    """The page of this query.

    Args:
        connection: any connection of the store.
        shelf: reports that were read before.
        query: what part of the fleet.
        now: seconds since the epoch.
        silent_after: age of the last poll from which an engine counts as silent.
        stale_after: age of the newest telemetry from which a drafter counts as stale.
    """
    engines = fleet_queries.engine_counts(connection, now=now, silent_after=silent_after)
    rows = _rows(connection, shelf, engines, now, stale_after)
    matched = [row for row in rows if query.matches(row)]
    key, largest_first = SORTS[query.sort]
    matched.sort(key=lambda row: row.name)
    matched.sort(key=key, reverse=largest_first != query.turned)
    pages = max(1, -(-len(matched) // PAGE_ROWS))
    shown = replace(query, page=min(query.page, pages))
    start = (shown.page - 1) * PAGE_ROWS
    return FleetPage(
        query=shown,
        rows=matched[start : start + PAGE_ROWS],
        total=len(rows),
        matched=len(matched),
        pages=pages,
        counts=Counter(row.status.word for row in rows),
        engines=_total(engines),
        events=sorted(
            list_events(connection, state="open", limit=_MOST_EVENTS),
            key=lambda event: -SEVERITIES.index(event.severity),
        ),
        silences=load_silences(connection),
    )


def _rows(
    connection: Connection,
    shelf: ReportShelf,
    engines: Mapping[str, EngineCounts],
    now: float,
    stale_after: float,
) -> list[FleetRow]:
    marks = fleet_queries.telemetry_marks(connection)
    events = fleet_queries.open_events(connection)
    documents = fleet_queries.drift_documents(connection)
    reports = fleet_queries.newest_reports(connection)
    found = []
    for state in all_states(connection):
        name = state.drafter.name
        head = reports.get(name)
        known = Findings(
            drift=read_drift(documents[name]) if name in documents else None,
            report=None if head is None else shelf.summary(connection, head),
            engines=engines.get(name, EngineCounts()),
            telemetry=marks.get(name, TelemetryMark()),
            champion=state.aliases.champion,
            now=now,
            stale_after=stale_after,
        )
        found.append(
            FleetRow(
                state=state,
                status=status_of(known),
                headline=headline(known),
                report=known.report,
                drift=known.drift,
                engines=known.engines,
                telemetry=known.telemetry,
                events=events.get(name, OpenEvents()),
            )
        )
    return found


def _total(engines: Mapping[str, EngineCounts]) -> EngineCounts:
    names = ("on_champion", "behind", "silent", "unreported")
    return EngineCounts(
        **{name: sum(getattr(counts, name) for counts in engines.values()) for name in names}
    )
