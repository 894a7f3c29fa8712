"""Reliability of one position: predicted against observed, before and after recalibration.

A panel in the manner of Figure 6 of the paper: the diagonal of a perfect model, one point a bin,
the 95 % interval of the calibrated points as a band, and below it a histogram of the predictions.
Raw confidence has open squares on a dashed line and calibrated confidence filled circles, so that
nothing is lost without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from api.dashboard.svg import LinearScale, drawing, element, path_data

if TYPE_CHECKING:
    from api.dashboard.report_document import Bin

__all__ = ["FEW_ROWS", "HEIGHT", "LEFT", "SIDE", "TOP", "WIDTH", "reliability_panel"]

# View box: a square plot, and under it a strip for the histogram.
WIDTH: Final = 204.0
HEIGHT: Final = 232.0
LEFT: Final = 32.0
TOP: Final = 8.0
SIDE: Final = 164.0
_STRIP_TOP: Final = TOP + SIDE + 8.0
_STRIP_HEIGHT: Final = 32.0

# Bins of fewer rows say little: they are drawn pale, and no line or band runs through them.
FEW_ROWS: Final = 30

# Shape of a point: x, y, class and title to markup.
_Marker = Callable[[float, float, str, Markup], Markup]

_X: Final = LinearScale(0.0, 1.0, LEFT, LEFT + SIDE)
_Y: Final = LinearScale(0.0, 1.0, TOP + SIDE, TOP)


def reliability_panel(raw: Sequence[Bin], calibrated: Sequence[Bin], *, label: str) -> Markup:
    """The panel of one position.

    Args:
        raw: bins with rows of raw confidence, in order of prediction.
        calibrated: bins with rows of calibrated confidence; empty where nothing was fitted.
        label: what the panel shows, for readers without sight.
    """
    main = calibrated or raw
    parts = [
        _grid(),
        _band(main),
        *(_series(raw, "raw", marker=_square) if calibrated else ()),
        *_series(main, "calibrated" if calibrated else "raw", marker=_circle),
        _histogram(raw, calibrated),
    ]
    return drawing(WIDTH, HEIGHT, *parts, label=label, class_="chart reliability")


def _grid() -> Markup:
    marks = []
    for value in (0.0, 0.5, 1.0):
        x, y = _X(value), _Y(value)
        marks += [
            element("path", class_="grid", d=path_data([(x, TOP), (x, TOP + SIDE)])),
            element("path", class_="grid", d=path_data([(LEFT, y), (LEFT + SIDE, y)])),
            element("text", f"{value:g}", class_="y tick", x=LEFT - 5, y=y + 3.5),
            element("text", f"{value:g}", class_="x tick", x=x, y=HEIGHT - 3),
        ]
    diagonal = path_data([(_X(0.0), _Y(0.0)), (_X(1.0), _Y(1.0))])
    return Markup("").join([*marks, element("path", class_="diagonal", d=diagonal)])


def _runs(bins: Sequence[Bin]) -> list[list[Bin]]:
    """Neighbouring bins that hold enough rows."""
    groups = groupby(bins, key=lambda found: found.count >= FEW_ROWS)
    return [list(group) for many, group in groups if many]


def _band(bins: Sequence[Bin]) -> Markup:
    """The 95 % interval, above and below each run of bins."""
    shapes = []
    for run in _runs(bins):
        upper = [(_X(b.mean_prediction), _Y(b.high)) for b in run]
        lower = [(_X(b.mean_prediction), _Y(b.low)) for b in reversed(run)]
        if len(run) == 1:  # a band has no width: an upright line instead
            shapes.append(element("path", class_="interval", d=path_data([*upper, *lower])))
        else:
            shapes.append(
                element("path", class_="band", d=path_data([*upper, *lower], closed=True))
            )
    return Markup("").join(shapes)


def _series(bins: Sequence[Bin], name: str, *, marker: _Marker) -> list[Markup]:
    lines = [
        element(
            "path",
            class_=f"line {name}",
            d=path_data((_X(b.mean_prediction), _Y(b.mean_label)) for b in run),
        )
        for run in _runs(bins)
    ]
    points = [
        marker(
            _X(b.mean_prediction),
            _Y(b.mean_label),
            f"point {name}" + ("" if b.count >= FEW_ROWS else " few"),
            _told(b, name),
        )
        for b in bins
    ]
    return lines + points


def _told(found: Bin, name: str) -> Markup:
    text = (
        f"{name}: predicted {found.mean_prediction:.2f}, observed {found.mean_label:.2f} "
        f"[{found.low:.2f}, {found.high:.2f}], {found.count:,} rows"
    )
    return element("title", text)


def _circle(x: float, y: float, class_: str, title: Markup) -> Markup:
    return element("circle", title, class_=class_, cx=x, cy=y, r=3.0)


def _square(x: float, y: float, class_: str, title: Markup) -> Markup:
    return element("rect", title, class_=class_, x=x - 3.0, y=y - 3.0, width=6.0, height=6.0)


def _histogram(raw: Sequence[Bin], calibrated: Sequence[Bin]) -> Markup:
    """How many rows each bin holds: bars for what is served, steps for raw confidence."""
    main = calibrated or raw
    largest = max((b.count for b in (*raw, *calibrated)), default=1)
    base = _STRIP_TOP + _STRIP_HEIGHT
    scale = LinearScale(0.0, float(largest), base, _STRIP_TOP)
    bars = [
        element(
            "rect",
            element("title", f"{b.count:,} rows in [{b.lower:.2f}, {b.upper:.2f}]"),
            class_="bar calibrated" if calibrated else "bar raw",
            x=_X(b.lower) + 0.5,
            y=scale(b.count),
            width=max(0.5, _X(b.upper) - _X(b.lower) - 1.0),
            height=base - scale(b.count),
        )
        for b in main
    ]
    outline = Markup("")
    if calibrated and raw:
        outline = element("path", class_="line raw", d=path_data(_steps(raw, scale)))
    axis = element("path", class_="axis", d=path_data([(LEFT, base), (LEFT + SIDE, base)]))
    return Markup("").join([*bars, outline, axis])


def _steps(bins: Sequence[Bin], scale: LinearScale) -> list[tuple[float, float]]:
    """The outline of a histogram, which falls to the ground where bins are missing."""
    ground = scale(0.0)
    corners: list[tuple[float, float]] = []
    edge = None
    for found in bins:
        left, right, top = _X(found.lower), _X(found.upper), scale(found.count)
        if edge != found.lower:
            corners += [(left, ground)] if edge is None else [(_X(edge), ground), (left, ground)]
        corners += [(left, top), (right, top)]
        edge = found.upper
    return [*corners, (_X(edge), ground)] if edge is not None else corners
