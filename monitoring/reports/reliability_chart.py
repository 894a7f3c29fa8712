"""One position's reliability as SVG: predicted against observed, before and after recalibration.

In the manner of Figure 6 of the paper: the diagonal of a perfect model, one point a bin, the 95 %
intervals of what is served as a band, and below it how the predictions are spread. What is served
has filled circles on a solid line, raw confidence behind it open squares on a dashed one, so that
nothing is lost without colour.

Reports, the dashboard and the picture that goes to MLflow draw the same bins, bands and runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup, element
from monitoring.reports.svg import LinearScale, drawing, path_data, text_mark

__all__ = ["FEW_ROWS", "Bin", "StoredBin", "bins_of", "filled_bins", "reliability_chart", "runs"]

# Bins of fewer rows say little: pale points, and neither line nor band runs through them.
FEW_ROWS: Final = 30

_LEFT: Final = 26.0
_TOP: Final = 6.0
_SIDE: Final = 158.0
_STRIP: Final = 34.0  # height of the histogram
_BETWEEN: Final = 9.0
_WIDTH: Final = _LEFT + _SIDE + 6.0
_BASE: Final = _TOP + _SIDE + _BETWEEN + _STRIP
_HEIGHT: Final = _BASE + 14.0
_X: Final = LinearScale(0.0, 1.0, _LEFT, _LEFT + _SIDE)
_Y: Final = LinearScale(0.0, 1.0, _TOP + _SIDE, _TOP)

# Centre, class and title of a point to its markup.
_Marker = Callable[[float, float, str, Markup], Markup]


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin that holds rows.

    Attributes:
        lower: its lower edge.
        upper: its upper edge.
        mean_prediction: of its rows.
        mean_label: share of its rows that were accepted.
        low: of the 95 % interval of that share.
        high: of that interval.
        count: rows.
    """

    lower: float
    upper: float
    mean_prediction: float
    mean_label: float
    low: float
    high: float
    count: int


StoredBin = tuple[float | None, float | None, float | None, float | None, float | None]
"""Rows, mean prediction, mean label, and the ends of its interval, as a report has them."""


def filled_bins(stored: Sequence[StoredBin]) -> list[Bin]:
    """The bins with rows, in order of prediction; equal widths over [0, 1]."""
    found = []
    for index, (rows, predicted, label, low, high) in enumerate(stored):
        if not rows or predicted is None or label is None:
            continue
        found.append(
            Bin(
                lower=index / len(stored),
                upper=(index + 1) / len(stored),
                mean_prediction=predicted,
                mean_label=label,
                low=label if low is None else low,
                high=label if high is None else high,
                count=int(rows),
            )
        )
    return found


def bins_of(position: Node) -> list[Bin]:
    """The bins with rows of one position's metrics, in order of prediction."""
    names = ("count", "mean_prediction", "mean_label", "mean_label_low", "mean_label_high")
    cells = [[entry.at(name).number for name in names] for entry in position.at("bins")]
    return filled_bins([(a, b, c, d, e) for a, b, c, d, e in cells])


def runs(bins: Sequence[Bin]) -> list[list[Bin]]:
    """Neighbours that hold enough rows: lines and bands run through these alone."""
    grouped = groupby(bins, key=lambda found: found.count >= FEW_ROWS)
    return [list(group) for many, group in grouped if many]


def reliability_chart(raw: Sequence[Bin], served: Sequence[Bin] | None, *, label: str) -> Markup:
    """The panel of one position.

    Args:
        raw: bins of raw confidence.
        served: bins of recalibrated confidence; None where nothing was recalibrated.
        label: what it shows, for readers without sight.
    """
    main = raw if served is None else served
    name = "raw" if served is None else "served"
    behind = () if served is None else raw
    parts = [
        *_grid(),
        *_band(main, name),
        *_series(behind, "raw", _square),
        *_series(main, name, _circle),
        *_histogram(main, name, behind),
    ]
    return drawing(_WIDTH, _HEIGHT, *parts, label=label, class_="chart reliability")


def _grid() -> Iterator[Markup]:
    for value in (0.0, 0.5, 1.0):
        x, y = _X(value), _Y(value)
        yield element("path", class_="grid", d=path_data([(x, _TOP), (x, _TOP + _SIDE)]))
        yield element("path", class_="grid", d=path_data([(_LEFT, y), (_LEFT + _SIDE, y)]))
        yield text_mark(_LEFT - 4.0, y + 3.0, f"{value:g}", "y tick")
        yield text_mark(x, _HEIGHT - 3.0, f"{value:g}", "x tick")
    yield element("path", class_="diagonal", d=path_data([(_X(0), _Y(0)), (_X(1), _Y(1))]))


def _band(bins: Sequence[Bin], name: str) -> Iterator[Markup]:
    for run in runs(bins):
        upper = [(_X(found.mean_prediction), _Y(found.high)) for found in run]
        lower = [(_X(found.mean_prediction), _Y(found.low)) for found in reversed(run)]
        if len(run) == 1:  # an area without width: an upright line instead
            yield element("path", class_=f"interval {name}", d=path_data([*upper, *lower]))
        else:
            yield element("path", class_=f"band {name}", d=path_data([*upper, *lower], closed=True))


def _series(bins: Sequence[Bin], name: str, marker: _Marker) -> Iterator[Markup]:
    for run in runs(bins):
        data = path_data((_X(found.mean_prediction), _Y(found.mean_label)) for found in run)
        yield element("path", class_=f"line {name}", d=data)
    for found in bins:
        said = element(
            "title",
            f"{name}: predicted {found.mean_prediction:.3f}, observed {found.mean_label:.3f} "
            f"[{found.low:.3f}, {found.high:.3f}], {found.count:,} rows",
        )
        class_ = f"point {name}" + ("" if found.count >= FEW_ROWS else " few")
        yield marker(_X(found.mean_prediction), _Y(found.mean_label), class_, said)


def _circle(x: float, y: float, class_: str, said: Markup) -> Markup:
    return element("circle", said, class_=class_, cx=x, cy=y, r=2.6)


def _square(x: float, y: float, class_: str, said: Markup) -> Markup:
    side = 5.0
    corner = {"x": x - side / 2.0, "y": y - side / 2.0}
    return element("rect", said, class_=class_, **corner, width=side, height=side)


def _histogram(main: Sequence[Bin], name: str, behind: Sequence[Bin]) -> Iterator[Markup]:
    """Rows per bin: bars for what is served, an outline for raw confidence."""
    largest = max((found.count for found in (*main, *behind)), default=1)
    scale = LinearScale(0.0, float(largest), _BASE, _BASE - _STRIP)
    for found in main:
        left, top = _X(found.lower) + 0.5, scale(found.count)
        place = {"x": left, "y": top, "width": max(0.5, _X(found.upper) - left - 0.5)}
        said = f"{found.count:,} rows in [{found.lower:.2f}, {found.upper:.2f}]"
        title = element("title", said)
        yield element("rect", title, class_=f"bar {name}", **place, height=_BASE - top)
    for run in _neighbours(behind):
        corners = [(_X(run[0].lower), _BASE)]
        for found in run:
            corners += [(_X(edge), scale(found.count)) for edge in (found.lower, found.upper)]
        corners.append((_X(run[-1].upper), _BASE))
        yield element("path", class_="line raw", d=path_data(corners))
    yield element("path", class_="axis", d=path_data([(_LEFT, _BASE), (_LEFT + _SIDE, _BASE)]))


def _neighbours(bins: Sequence[Bin]) -> list[list[Bin]]:
    """Bins in runs without a gap."""
    runs: list[list[Bin]] = []
    for found in bins:
        if runs and abs(runs[-1][-1].upper - found.lower) < 1e-9:
            runs[-1].append(found)
        else:
            runs.append([found])
    return runs
