"""Reliability of every position of a report: pictures with the numbers and words beside them."""

from __future__ import annotations

from dataclasses import dataclass

from api.dashboard.formats import points, signed_points
from api.dashboard.report_document import PositionErrors, ReportDocument, View
from monitoring.reports.markup import Markup
from monitoring.reports.reliability_chart import Bin, reliability_chart

__all__ = ["Panel", "panels_of"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One position.

    Attributes:
        position: 1-based.
        svg: its picture.
        served: metrics of what is served.
        raw: metrics of raw confidence.
        is_recalibrated: whether the two differ.
    """

    position: int
    svg: Markup
    served: PositionErrors
    raw: PositionErrors
    is_recalibrated: bool

    @property
    def bins(self) -> list[Bin]:
        """Bins of what is served."""
        return self.served.bins


def panels_of(report: ReportDocument | None, view: View) -> list[Panel]:
    """A panel for each position; none without judged rows."""
    if report is None or report.evaluation is None:
        return []
    overall = report.evaluation.overall
    served, raw = overall.calibrated.positions(view), overall.raw.positions(view)
    return [
        _panel(index + 1, before, after)
        for index, (before, after) in enumerate(zip(raw, served, strict=False))
    ]


def _panel(position: int, raw: PositionErrors, served: PositionErrors) -> Panel:
    differ = raw != served
    before, after = raw.bins, served.bins
    svg = reliability_chart(before, after if differ else None, label=_label(position, raw, served))
    return Panel(position, svg, served, raw, differ)


def _label(position: int, raw: PositionErrors, served: PositionErrors) -> str:
    """The picture in words."""
    if served.gap is None or served.mean_prediction is None or served.mean_label is None:
        return f"Reliability at position {position}: no rows."
    said = (
        f"Reliability at position {position}, {served.n:,} rows: mean confidence "
        f"{served.mean_prediction:.3f}, observed {served.mean_label:.3f}, "
        f"{signed_points(served.gap)}. ECE {points(served.ece)} points"
    )
    said += "" if raw == served else f", before recalibration {points(raw.ece)}"
    return said + f"; a perfect model would show {points(served.null_level)}."
