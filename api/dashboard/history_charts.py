"""Charts over time and rows: calibration error with its interval, and drift evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from api.dashboard.formats import power_of_ten
from monitoring.reports.markup import Markup, element, joined
from monitoring.reports.svg import LinearScale, drawing, path_data, ticks

__all__ = [
    "HEIGHT",
    "WIDTH",
    "ErrorPoint",
    "EvidencePoint",
    "error_chart",
    "evidence_chart",
    "sparkline",
]

WIDTH: Final = 560.0
HEIGHT: Final = 220.0
LEFT: Final = 46.0
RIGHT: Final = 548.0
TOP: Final = 22.0
BOTTOM: Final = 182.0

SPARK_WIDTH: Final = 96.0
SPARK_HEIGHT: Final = 24.0


@dataclass(frozen=True, slots=True)
class ErrorPoint:
    """A calibration error at one time.

    Attributes:
        at: seconds since the epoch.
        value: the error, in [0, 1].
        low: of its interval, or None.
        high: of its interval, or None.
        revision: champion at that time, or None.
        rows: rows since that champion's publication, or None.
    """

    at: float
    value: float
    low: float | None = None
    high: float | None = None
    revision: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class EvidencePoint:
    """The strongest evidence after so many rows.

    Attributes:
        rows: rows since the champion's publication.
        log10: decimal logarithm of the e-value.
    """

    rows: int
    log10: float


def error_chart(points: Sequence[ErrorPoint], *, label: str) -> Markup:
    """Error over time in points of a hundredth, with its interval as a band.

    Telemetry that came all at once has no time worth showing: then the axis counts rows.

    Args:
        points: in order of time, at least one.
        label: what it shows, for readers without sight.
    """
    by_rows = points[-1].at - points[0].at < 1.0 and all(p.rows is not None for p in points)

    def place(point: ErrorPoint) -> float:
        return float(point.rows or 0) if by_rows else point.at

    axis = LinearScale(place(points[0]), place(points[-1]), LEFT, RIGHT)

    def x(point: ErrorPoint) -> float:
        return axis(place(point))

    top = max(max(p.value, p.high or 0.0) for p in points)
    y = LinearScale(0.0, max(0.01, top * 1.08), BOTTOM, TOP)
    bounded = [p for p in points if p.low is not None and p.high is not None]
    upper = [(x(p), y(p.high or 0.0)) for p in bounded]
    lower = [(x(p), y(p.low or 0.0)) for p in reversed(bounded)]
    band = element("path", class_="band", d=path_data([*upper, *lower], closed=True))
    dots = [
        element("circle", _error_title(p), class_="point served", cx=x(p), cy=y(p.value), r=2.5)
        for p in points
    ]
    parts = [
        _axis_name("points", x=4.0, y=12.0),
        *_y_grid([(y(v), f"{100 * v:g}") for v in ticks(0.0, y.high, 4)]),
        *(_row_axis(axis) if by_rows else _time_axis(axis)),
        *_promotions(points, x),
        band if len(bounded) > 1 else _intervals(bounded, x, y),
        element("path", class_="line served", d=path_data((x(p), y(p.value)) for p in points)),
        *dots,
    ]
    return drawing(WIDTH, HEIGHT, *parts, label=label, class_="chart wide")


def evidence_chart(
    points: Sequence[EvidencePoint],
    *,
    warn: float | None,
    act: float | None,
    label: str,
) -> Markup:
    """Evidence over rows on a logarithmic scale, with the levels at which something happens.

    Args:
        points: in order of rows, at least one.
        warn: decimal logarithm of the warn level, or None.
        act: decimal logarithm of the act level, or None.
        label: what it shows, for readers without sight.
    """
    x = LinearScale(float(points[0].rows), float(points[-1].rows), LEFT, RIGHT)
    low = min(0.0, math.floor(min(p.log10 for p in points)))
    reached = [p.log10 for p in points] + [level for level in (warn, act) if level is not None]
    y = LinearScale(low, max(reached) + 0.6, BOTTOM, TOP)
    powers = [int(power) for power in ticks(low, y.high, 5) if float(power).is_integer()]
    levels = _levels([("act", act), ("warn", warn)], y)
    parts = [
        _axis_name("evidence", x=4.0, y=12.0),
        *_y_grid([(y(power), _power(power)) for power in powers]),
        *_row_axis(x),
        *levels,
        element(
            "path", class_="line evidence", d=path_data((x(p.rows), y(p.log10)) for p in points)
        ),
        element(
            "circle", class_="point evidence", cx=x(points[-1].rows), cy=y(points[-1].log10), r=3
        ),
    ]
    return drawing(WIDTH, HEIGHT, *parts, label=label, class_="chart wide")


def _levels(levels: Sequence[tuple[str, float | None]], y: LinearScale) -> list[Markup]:
    """Lines of the act and the warn level, with their names.

    Names stand above and below their lines, so that near levels do not hide each other's; where
    the axis is too near, both stand above, one after the other.
    """
    known = {name: at for name, at in levels if at is not None}
    found = []
    for name, at in known.items():
        x, place = LEFT + 6.0, y(at) - 4.0
        if name == "warn" and y(at) + 16.0 <= BOTTOM:
            place = y(at) + 13.0
        elif name == "warn" and "act" in known:
            x, place = LEFT + 84.0, y(known["act"]) - 4.0
        text = f"{name} {power_of_ten(at)}"
        line = path_data([(LEFT, y(at)), (RIGHT, y(at))])
        found.append(element("path", class_=f"level {name}", d=line))
        found.append(element("text", text, class_=f"level {name}", x=x, y=place))
    return found


def sparkline(values: Sequence[float], *, limit: float | None, label: str) -> Markup:
    """A line as high as a line of text, with a dashed limit.

    Args:
        values: in order; none or one gives an empty picture.
        limit: where the dashed line goes, or None.
        label: what it shows, for readers without sight.
    """
    highest = max([*values, limit or 0.0, 1.0])
    x = LinearScale(0.0, max(1.0, len(values) - 1.0), 2.0, SPARK_WIDTH - 2.0)
    y = LinearScale(min([0.0, *values]), highest * 1.1, SPARK_HEIGHT - 2.0, 2.0)
    parts = []
    if limit is not None:
        line = path_data([(0.0, y(limit)), (SPARK_WIDTH, y(limit))])
        parts.append(element("path", class_="level act", d=line))
    if len(values) > 1:
        line = path_data((x(index), y(value)) for index, value in enumerate(values))
        parts.append(element("path", class_="line evidence", d=line))
    return drawing(SPARK_WIDTH, SPARK_HEIGHT, *parts, label=label, class_="chart spark")


def _axis_name(text: str, *, x: float, y: float, class_: str = "first") -> Markup:
    return element("text", text, class_=f"axis-name {class_}", x=x, y=y)


def _y_grid(marks: Sequence[tuple[float, str | Markup]]) -> list[Markup]:
    found = []
    for at, text in marks:
        found.append(element("path", class_="grid", d=path_data([(LEFT, at), (RIGHT, at)])))
        found.append(element("text", text, class_="y tick", x=LEFT - 6, y=at + 3.5))
    return found


def _x_ticks(marks: Sequence[tuple[float, str]]) -> list[Markup]:
    found = [element("path", class_="axis", d=path_data([(LEFT, BOTTOM), (RIGHT, BOTTOM)]))]
    for at, text in marks:
        # The first and last labels stay inside the picture.
        place = "first" if at < LEFT + 20 else "last" if at > RIGHT - 20 else "middle"
        found.append(element("path", class_="axis", d=path_data([(at, BOTTOM), (at, BOTTOM + 4)])))
        found.append(element("text", text, class_=f"x tick {place}", x=at, y=BOTTOM + 17))
    return found


def _row_axis(x: LinearScale) -> list[Markup]:
    marks = [(x(value), f"{value:,.0f}") for value in ticks(x.low, x.high, 4)]
    return [_axis_name("rows", x=RIGHT, y=HEIGHT - 5.0, class_="last"), *_x_ticks(marks)]


def _time_axis(x: LinearScale) -> list[Markup]:
    """Moments at equal distances: their text carries as much as the distance asks for."""
    span = x.high - x.low
    if span <= 0:
        return _x_ticks([(x(x.low), _moment(x.low, "%d %b %H:%M"))])
    form = "%H:%M:%S" if span < 600 else "%H:%M" if span < 86_400 else "%d %b"
    moments = [x.low + span * part / 4 for part in range(5)]
    return _x_ticks([(x(moment), _moment(moment, form)) for moment in moments])


def _promotions(points: Sequence[ErrorPoint], x: Callable[[ErrorPoint], float]) -> list[Markup]:
    """Upright lines where the champion changed."""
    found = []
    for before, after in pairwise(points):
        if None not in (before.revision, after.revision) and before.revision != after.revision:
            at = (x(before) + x(after)) / 2
            found.append(element("path", class_="change", d=path_data([(at, TOP), (at, BOTTOM)])))
            found.append(
                element("text", f"r{after.revision}", class_="change", x=at + 3, y=TOP + 9)
            )
    return found


def _intervals(
    points: Sequence[ErrorPoint], x: Callable[[ErrorPoint], float], y: LinearScale
) -> Markup:
    lines = [
        element(
            "path",
            class_="interval",
            d=path_data([(x(p), y(p.low or 0.0)), (x(p), y(p.high or 0.0))]),
        )
        for p in points
    ]
    return joined(lines)


def _error_title(point: ErrorPoint) -> Markup:
    interval = ""
    if point.low is not None and point.high is not None:
        interval = f" [{100 * point.low:.1f}, {100 * point.high:.1f}]"
    when = _moment(point.at, "%d %b %H:%M:%S UTC")
    return element("title", f"{when}: {100 * point.value:.1f} points{interval}")


def _power(power: int) -> Markup:
    if power == 0:
        return Markup("1")
    return joined(["10", element("tspan", f"{power}", class_="power", dy=-4.0)])


def _moment(seconds: float, form: str) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)
