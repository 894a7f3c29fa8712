"""Reports that were read before: they never change, so each is read once a process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy import Connection, select

from api.dashboard.fleet_queries import ReportHead
from api.dashboard.reliability_panels import Panel, panels_of
from api.dashboard.report_document import PositionErrors, ReportDocument, View, read_report
from monitoring.store import tables

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["ReportShelf", "ReportSummary", "shelf_of", "worst_gap"]

K = TypeVar("K")
V = TypeVar("V")

# A document takes about a megabyte in memory, a summary less than a kilobyte.
_DOCUMENTS: Final = 8
_SUMMARIES: Final = 20_000
_DRAWN: Final = 16


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """What a list or a curve shows of a report; None where it does not say.

    Attributes:
        revision: champion it judged.
        created_at: seconds since the epoch.
        rows: rows judged.
        ece: mean survival ECE of what is served.
        raw_ece: mean survival ECE of raw confidence.
        perfect: what a perfect model would show on these rows.
        error: debiased survival error over the whole block.
        error_low: of its 95 % interval.
        error_high: of that interval.
        gap_position: position whose mean confidence is furthest off, 1-based; None where none is
            off by more than chance.
        gap: confidence minus observed survival there.
    """

    revision: int
    created_at: float
    rows: int = 0
    ece: float | None = None
    raw_ece: float | None = None
    perfect: float | None = None
    error: float | None = None
    error_low: float | None = None
    error_high: float | None = None
    gap_position: int | None = None
    gap: float | None = None


class ReportShelf:
    """Keeps what was read last; may be used by several threads."""

    def __init__(self) -> None:
        self._documents: OrderedDict[int, ReportDocument | None] = OrderedDict()
        self._summaries: OrderedDict[int, ReportSummary] = OrderedDict()
        self._panels: OrderedDict[tuple[int, View], list[Panel]] = OrderedDict()
        self._lock = threading.Lock()

    def document(self, connection: Connection, head: ReportHead) -> ReportDocument | None:
        """The report; None where it was removed meanwhile or cannot be read."""
        return self._kept(
            self._documents, head.id, _DOCUMENTS, lambda: _read_document(connection, head.id)
        )

    def summary(self, connection: Connection, head: ReportHead) -> ReportSummary:
        """What a list shows of it."""

        def make() -> ReportSummary:
            return _summary(head, _read_document(connection, head.id))

        return self._kept(self._summaries, head.id, _SUMMARIES, make)

    def panels(self, connection: Connection, head: ReportHead, view: View) -> list[Panel]:
        """Reliability panels of every position."""
        return self._kept(
            self._panels,
            (head.id, view),
            _DRAWN,
            lambda: panels_of(self.document(connection, head), view),
        )

    def _kept(self, shelf: OrderedDict[K, V], key: K, most: int, make: Callable[[], V]) -> V:
        with self._lock:
            if key in shelf:
                shelf.move_to_end(key)
                return shelf[key]
        made = make()  # outside the lock: it reads the database
        with self._lock:
            shelf[key] = made
            while len(shelf) > most:
                shelf.popitem(last=False)
        return made


def worst_gap(positions: list[PositionErrors]) -> tuple[int, float] | None:
    """Position (1-based) and gap of the mean that is furthest off beyond chance, or None.

    Chance is two standard errors of the observed share at the effective number of rows.
    """
    found: tuple[int, float] | None = None
    for index, metrics in enumerate(positions):
        gap, share, rows = metrics.gap, metrics.mean_label, metrics.effective_n or metrics.n
        if gap is None or share is None or not rows:
            continue
        error = max(share * (1.0 - share), 0.25 / rows) ** 0.5 / rows**0.5
        if abs(gap) > 2.0 * error and (found is None or abs(gap) > abs(found[1])):
            found = (index + 1, gap)
    return found


def _read_document(connection: Connection, identifier: int) -> ReportDocument | None:
    query = select(tables.reports.c.document).where(tables.reports.c.id == identifier)
    document = connection.execute(query).scalar()
    return None if document is None else read_report(bytes(document))


def _summary(head: ReportHead, report: ReportDocument | None) -> ReportSummary:
    if report is None or report.evaluation is None:
        return ReportSummary(head.revision, head.created_at)
    served, raw = report.evaluation.overall.calibrated, report.evaluation.overall.raw
    gap = worst_gap(served.positions("survival"))
    return ReportSummary(
        revision=head.revision,
        created_at=head.created_at,
        rows=report.evaluation.rows,
        ece=served.mean("survival").ece,
        raw_ece=raw.mean("survival").ece,
        perfect=served.mean("survival").null_level,
        error=served.block.survival.value,
        error_low=served.block.survival.low,
        error_high=served.block.survival.high,
        gap_position=None if gap is None else gap[0],
        gap=None if gap is None else gap[1],
    )


def shelf_of(app: FastAPI) -> ReportShelf:
    """The shelf of this application, made when a page first needs it."""
    shelf: ReportShelf | None = getattr(app.state, "report_shelf", None)
    if shelf is None:
        shelf = app.state.report_shelf = ReportShelf()
    return shelf
