"""Everything that the page of one drafter shows, read in one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from api.dashboard import fleet_queries
from api.dashboard.drift_document import DriftDocument, DriftTest, read_drift
from api.dashboard.fleet_queries import EngineCounts, ReportHead, TelemetryMark
from api.dashboard.formats import points, seconds_of
from api.dashboard.history_charts import ErrorPoint, EvidencePoint
from api.dashboard.report_document import ReportDocument, Segment
from api.dashboard.report_shelf import ReportShelf, ReportSummary
from api.dashboard.silence_queries import Silences, load_silences
from api.dashboard.statuses import Findings, Status, headline, sentences, status_of
from api.schemas import EngineView
from api.views import drafter_body, engine_view
from monitoring.store import events, jobs, monitor_states, revisions, telemetry
from monitoring.store.drafter_rows import DrafterState, state_of

__all__ = [
    "DrafterPage",
    "PositionRow",
    "RevisionRow",
    "SegmentRow",
    "evidence_sentence",
    "load_drafter",
]

_ENGINES: Final = 10
_EVENTS: Final = 15
_REVISIONS: Final = 8
_JOBS: Final = 5
# Points of the curve where the loop keeps no history yet; each report was read once at most.
_REPORTS: Final = 60


@dataclass(frozen=True, slots=True)
class PositionRow:
    """One position in the table of positions; None where nothing is known."""

    position: int
    temperature: float
    fit_status: str
    observed: float | None
    raw_ece: float | None
    ece: float | None
    perfect: float | None
    auc: float | None
    gap: float | None
    test: DriftTest | None


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """One slice of traffic."""

    name: str
    rows: int
    raw_ece: float | None
    ece: float | None
    perfect: float | None
    test: DriftTest | None

    @property
    def is_crossed(self) -> bool:
        """Whether it is of several tags at once."""
        return ", " in self.name


@dataclass(frozen=True, slots=True)
class RevisionRow:
    """A revision with what is known for and against it.

    Attributes:
        revision: it.
        aliases: names that point at it.
        evidence: one sentence, or None.
    """

    revision: revisions.Revision
    aliases: tuple[str, ...]
    evidence: str | None


@dataclass(frozen=True, slots=True)
class DrafterPage:
    """The page; see the module's description."""

    state: DrafterState
    etag: str
    status: Status
    headline: str
    sentences: list[str]
    found: Findings
    report: ReportDocument | None
    report_head: ReportHead | None
    counters: telemetry.TelemetryCounters
    positions: list[PositionRow]
    segments: list[SegmentRow]
    tests: list[DriftTest]
    errors: list[ErrorPoint]
    evidence: list[EvidencePoint]
    revisions: list[RevisionRow]
    older_revisions: int | None
    engines: list[EngineView]
    events: list[events.Event]
    silences: Silences
    jobs: list[jobs.Job]

    @property
    def name(self) -> str:
        """Name of the drafter."""
        return self.state.drafter.name

    @property
    def drift(self) -> DriftDocument | None:
        """Its drift document."""
        return self.found.drift


def load_drafter(
    connection: Connection,
    shelf: ReportShelf,
    name: str,
    *,
    now: float,
    silent_after: float,
    stale_after: float,
    revisions_before: int | None = None,
) -> DrafterPage:
    """The page of one drafter.

    Args:
        connection: any connection of the store.
        shelf: reports that were read before.
        name: the drafter.
        now: seconds since the epoch.
        silent_after: age of the last poll from which an engine counts as silent.
        stale_after: age of the newest telemetry from which a drafter counts as stale.
        revisions_before: only revisions with smaller numbers.

    Raises:
        NotFoundError: nobody registered it.
    """
    state = state_of(connection, name)
    counters = telemetry.counters(connection, name)
    heads = fleet_queries.report_heads(connection, name, limit=_REPORTS)
    head = heads[-1] if heads else None
    report = None if head is None else shelf.document(connection, head)
    stored = monitor_states.load_document(connection, name)
    counts = fleet_queries.engine_counts(
        connection, now=now, silent_after=silent_after, drafter=name
    )
    found = Findings(
        drift=None if stored is None else read_drift(stored.document),
        report=None if head is None else shelf.summary(connection, head),
        engines=counts.get(name, EngineCounts()),
        telemetry=TelemetryMark(counters.rows, counters.rejected, counters.last_received_at),
        champion=state.aliases.champion,
        now=now,
        stale_after=stale_after,
    )
    champion = revisions.get_revision(connection, name, state.aliases.champion)
    listed = revisions.list_revisions(connection, name, before=revisions_before, limit=_REVISIONS)
    drift = found.drift
    return DrafterPage(
        state=state,
        etag=drafter_body(state)[1],
        status=status_of(found),
        headline=headline(found),
        sentences=sentences(found),
        found=found,
        report=report,
        report_head=head,
        counters=counters,
        positions=_positions(champion, report, drift),
        segments=_segments(report, drift),
        tests=sorted(drift.tests, key=lambda test: -test.share) if drift else [],
        errors=_errors(connection, shelf, heads, drift),
        evidence=[EvidencePoint(*point) for point in drift.evidence] if drift else [],
        revisions=[_revision(revision, state) for revision in listed],
        older_revisions=_older(listed),
        engines=_engines(connection, state, now, silent_after),
        events=events.list_events(connection, drafter=name, limit=_EVENTS),
        silences=load_silences(connection).about(name),
        jobs=jobs.list_jobs(connection, drafter=name, limit=_JOBS),
    )


def evidence_sentence(revision: revisions.Revision) -> str | None:
    """What held-out rows said when the revision was made; None where it carries no evidence."""
    held_out = revision.calibration.evidence.get("held_out")
    errors = held_out.get("survival_ece") if isinstance(held_out, Mapping) else None
    if not isinstance(held_out, Mapping) or not isinstance(errors, Mapping):
        return None
    before, after = _number(errors.get("before")), _number(errors.get("after"))
    if before is None or after is None:
        return None
    said = f"Held-out survival ECE {points(before)} → {points(after)} points"
    if "champion" in held_out:
        said += f" against revision {held_out['champion']}"
    perfect = _number(errors.get("perfect"))
    return said + ("" if perfect is None else f"; perfect would be {points(perfect)}")


def _positions(
    champion: revisions.Revision, report: ReportDocument | None, drift: DriftDocument | None
) -> list[PositionRow]:
    calibration = champion.calibration
    evaluation = report.evaluation if report is not None else None
    served = evaluation.overall.calibrated.positions("survival") if evaluation else []
    raw = evaluation.overall.raw.positions("survival") if evaluation else []
    found = []
    for index, temperature in enumerate(calibration.temperatures):
        after = served[index] if index < len(served) else None
        before = raw[index] if index < len(raw) else None
        statuses = calibration.position_statuses
        was_fitted = champion.number > 0 and index < len(statuses)
        found.append(
            PositionRow(
                position=index + 1,
                temperature=temperature,
                fit_status=str(statuses[index]) if was_fitted else "identity",
                observed=after.mean_label if after else None,
                raw_ece=before.ece if before else None,
                ece=after.ece if after else None,
                perfect=after.null_level if after else None,
                auc=after.auc if after else None,
                gap=after.gap if after else None,
                test=_worst(
                    drift, lambda t, k=index + 1: t.scope == "position" and t.position == k
                ),
            )
        )
    return found


def _segments(report: ReportDocument | None, drift: DriftDocument | None) -> list[SegmentRow]:
    """Slices of the report, and those that only tests know."""
    evaluation = report.evaluation if report is not None else None
    rows = {}
    for segment in evaluation.segments if evaluation else []:
        rows[segment.name] = _segment(segment, drift)
    for test in drift.tests if drift else []:
        name = test.segment_name
        if name and name not in rows:
            worst = _worst(drift, lambda t, wanted=name: t.segment_name == wanted)
            rows[name] = SegmentRow(name, test.rows, None, None, None, worst)
    return list(rows.values())


def _segment(segment: Segment, drift: DriftDocument | None) -> SegmentRow:
    compared = segment.comparison
    served = compared.calibrated.mean("survival") if compared else None
    raw = compared.raw.mean("survival") if compared else None
    return SegmentRow(
        name=segment.name,
        rows=segment.rows,
        raw_ece=raw.ece if raw else None,
        ece=served.ece if served else None,
        perfect=served.null_level if served else None,
        test=_worst(drift, lambda t: t.segment_name == segment.name),
    )


def _worst(drift: DriftDocument | None, chosen: Any) -> DriftTest | None:
    tests = [test for test in drift.tests if chosen(test)] if drift else []
    return max(tests, key=lambda test: test.share, default=None)


def _errors(
    connection: Connection,
    shelf: ReportShelf,
    heads: list[ReportHead],
    drift: DriftDocument | None,
) -> list[ErrorPoint]:
    """Error over time: as the loop noted it, else from stored reports."""
    noted = []
    for point in drift.history if drift else []:
        at = seconds_of(point.at)
        if at is not None and point.ece is not None:
            noted.append(ErrorPoint(at, point.ece, point.ece_low, point.ece_high, rows=point.rows))
    if len(noted) > 1:
        return sorted(noted, key=lambda point: (point.at, point.rows or 0))
    summaries = [shelf.summary(connection, head) for head in heads]
    return [_error(summary, summary.error) for summary in summaries if summary.error is not None]


def _error(summary: ReportSummary, error: float) -> ErrorPoint:
    return ErrorPoint(
        summary.created_at, error, summary.error_low, summary.error_high, summary.revision
    )


def _revision(revision: revisions.Revision, state: DrafterState) -> RevisionRow:
    names = ("champion", "challenger", "previous")
    held = tuple(name for name in names if getattr(state.aliases, name) == revision.number)
    return RevisionRow(revision, held, evidence_sentence(revision))


def _older(listed: list[revisions.Revision]) -> int | None:
    """Number that the next page of revisions stops before; None on the last page."""
    more = len(listed) == _REVISIONS and listed[-1].number > 0
    return listed[-1].number if more else None


def _engines(
    connection: Connection, state: DrafterState, now: float, silent_after: float
) -> list[EngineView]:
    found = fleet_queries.engine_page(
        connection, state.drafter.name, now=now, silent_after=silent_after, limit=_ENGINES
    )
    return [
        engine_view(row, publication=state.publication, now=now, silent_after=silent_after)
        for row in found
    ]


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
