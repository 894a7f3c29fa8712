"""Charts of a report beside its reliability panels: errors, accepted lengths, temperatures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup, element, joined
from monitoring.reports.svg import LinearScale, drawing, path_data, text_mark, ticks

__all__ = ["error_chart", "length_chart", "temperature_chart"]

_WIDTH: Final = 380.0
_HEIGHT: Final = 220.0
_LEFT: Final = 40.0
_RIGHT: Final = 26.0
_TOP: Final = 8.0
_BOTTOM: Final = 36.0
_APART: Final = 11.0  # pixels between two words at the right end


@dataclass(frozen=True, slots=True)
class _Frame:
    """Scales of a chart and its grid."""

    x: LinearScale
    y: LinearScale

    @classmethod
    def of(cls, x: tuple[float, float], y: tuple[float, float]) -> _Frame:
        return cls(
            LinearScale(*x, _LEFT, _WIDTH - _RIGHT), LinearScale(*y, _HEIGHT - _BOTTOM, _TOP)
        )

    def grid(
        self, across: Sequence[tuple[float, str]], up: Sequence[float], title: str
    ) -> Iterator[Markup]:
        """Lines at the ticks of the y axis, words at those of both, and the x axis' title."""
        for value in up:
            y = self.y(value)
            yield element("path", class_="grid", d=path_data([(_LEFT, y), (_WIDTH - _RIGHT, y)]))
            yield text_mark(_LEFT - 5.0, y + 3.5, f"{value:g}", "y tick")
        for value, text in across:
            yield text_mark(self.x(value), _HEIGHT - _BOTTOM + 14.0, text, "x tick")
        middle = (self.x.start + self.x.end) / 2.0
        yield text_mark(middle, _HEIGHT - 5.0, title, "x title")


def error_chart(raw: Sequence[Node], served: Sequence[Node] | None, *, label: str) -> Markup:
    """Debiased ECE by position in points, with 95 % intervals, raw and served.

    Steps show the plug-in ECE of a perfect model on these rows: an error below them is no evidence.

    Args:
        raw: metrics by position.
        served: metrics of what is served; None where nothing was recalibrated.
        label: what it shows, for readers without sight.
    """
    sides = [("raw", raw)] if served is None else [("raw", raw), ("served", served)]
    tops = [_points(p, name) for _, side in sides for p in side for name in _HEIGHTS]
    highest = max([1.0, *(value for value in tops if value is not None)]) * 1.08
    frame = _Frame.of((0.5, len(raw) + 0.5), (0.0, highest))
    across = [(float(k), str(k)) for k in range(1, len(raw) + 1)]
    parts = [*_levels(frame, sides[-1][1]), *frame.grid(across, ticks(0.0, highest, 5), "position")]
    for index, (name, side) in enumerate(sides):
        shift = 0.0 if len(sides) == 1 else (-0.13, 0.13)[index]
        for k, position in enumerate(side, start=1):
            parts.append(_error(frame, k + shift, position, name))
    return drawing(_WIDTH, _HEIGHT, *parts, label=label, class_="plot")


_HEIGHTS: Final = ("debiased_ece", "debiased_ece_high", "null_level")


def _points(position: Node, name: str) -> float | None:
    value = position.at(name).number
    return None if value is None else 100.0 * value


def _levels(frame: _Frame, side: Sequence[Node]) -> Iterator[Markup]:
    ground = frame.y(0.0)
    for k, position in enumerate(side, start=1):
        level = _points(position, "null_level")
        if level is not None:
            left, right, top = frame.x(k - 0.5), frame.x(k + 0.5), frame.y(level)
            yield element(
                "rect", class_="level", x=left, y=top, width=right - left, height=ground - top
            )


def _error(frame: _Frame, x: float, position: Node, name: str) -> Markup:
    value = _points(position, "debiased_ece")
    if value is None:
        return Markup("")
    low, high = _points(position, "debiased_ece_low"), _points(position, "debiased_ece_high")
    return joined((*_arm(frame, x, low, high, name), _mark(frame, x, value, name)))


def _arm(
    frame: _Frame, x: float, low: float | None, high: float | None, name: str
) -> Iterator[Markup]:
    if low is not None and high is not None:
        ends = [(frame.x(x), frame.y(low)), (frame.x(x), frame.y(high))]
        yield element("path", class_=f"interval {name}", d=path_data(ends))


def _mark(frame: _Frame, x: float, y: float, name: str) -> Markup:
    left, top = frame.x(x), frame.y(y)
    if name == "raw":
        return element("rect", class_="point raw", x=left - 3.0, y=top - 3.0, width=6.0, height=6.0)
    return element("circle", class_=f"point {name}", cx=left, cy=top, r=3.0)


def length_chart(groups: Sequence[Node], *, recalibrated: bool, label: str) -> Markup:
    """Realised against predicted accepted length, by groups of blocks, with 95 % intervals.

    Args:
        groups: of :class:`monitoring.reports.length_forecast.LengthForecast`.
        recalibrated: whether served confidence differs from raw.
        label: what it shows, for readers without sight.
    """
    sides = ("raw", "served") if recalibrated else ("raw",)
    names = [_PREDICTED[side] for side in sides] + ["realised", "realised_low", "realised_high"]
    known = [v for group in groups for name in names if (v := group.at(name).number) is not None]
    if not known:
        return Markup("")
    low, high = max(1.0, min(known) - 0.1), max(known) + 0.1
    frame = _Frame.of((low, high), (low, high))
    marks = ticks(low, high, 5)
    across = [(value, f"{value:g}") for value in marks]
    ends = [(frame.x(low), frame.y(low)), (frame.x(high), frame.y(high))]
    parts = [
        *frame.grid(across, marks, "predicted accepted length"),
        element("path", class_="diagonal", d=path_data(ends)),
    ]
    for side in sides:
        for group in groups:
            x, y = group.at(_PREDICTED[side]).number, group.at("realised").number
            if x is not None and y is not None:
                arms = group.at("realised_low").number, group.at("realised_high").number
                parts += [*_arm(frame, x, *arms, side), _mark(frame, x, y, side)]
    return drawing(_WIDTH, _HEIGHT, *parts, label=label, class_="plot")


_PREDICTED: Final = {"raw": "raw", "served": "calibrated"}


def temperature_chart(revisions: Sequence[Node], *, label: str) -> Markup:
    """Temperature of every position over revisions, oldest first; one line a position.

    Args:
        revisions: objects with ``revision`` and ``temperatures``.
        label: what it shows, for readers without sight.
    """
    rows = [[value.number for value in entry.at("temperatures")] for entry in revisions]
    known = [value for row in rows for value in row if value is not None]
    if len(rows) < 2 or not known:
        return Markup("")
    margin = 0.05 * (max(known) - min(known)) or 0.1
    low, high = min([1.0, *known]) - margin, max([1.0, *known]) + margin
    frame = _Frame.of((0.0, float(len(rows) - 1)), (low, high))
    every = max(1, len(rows) // 8)
    across = [
        (float(index), entry.at("revision").text)
        for index, entry in enumerate(revisions)
        if index % every == 0 or index == len(rows) - 1
    ]
    parts = list(frame.grid(across, ticks(low, high, 5), "revision"))
    one = frame.y(1.0)
    parts.append(
        element("path", class_="diagonal", d=path_data([(_LEFT, one), (_WIDTH - _RIGHT, one)]))
    )
    return drawing(
        _WIDTH, _HEIGHT, *parts, *_temperature_lines(frame, rows), label=label, class_="plot"
    )


def _temperature_lines(frame: _Frame, rows: list[list[float | None]]) -> Iterator[Markup]:
    ends: list[tuple[float, str]] = []
    for k in range(max(len(row) for row in rows)):
        column = [row[k] if k < len(row) else None for row in rows]
        known = [(float(i), value) for i, value in enumerate(column) if value is not None]
        data = path_data((frame.x(i), frame.y(value)) for i, value in known)
        yield element("path", class_=f"line trace-{k % 4}", d=data)
        for i, value in known:
            yield element("circle", class_="point trace", cx=frame.x(i), cy=frame.y(value), r=2.0)
        if known:
            ends.append((frame.y(known[-1][1]), str(k + 1)))
    for y, text in _spread(sorted(ends)):
        yield text_mark(_WIDTH - _RIGHT + 6.0, y + 3.5, text, "end tick")


def _spread(words: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The words pushed apart downwards, and the whole column up again where it ran out."""
    placed: list[tuple[float, str]] = []
    for y, text in words:
        placed.append((max(y, placed[-1][0] + _APART) if placed else y, text))
    over = max(0.0, placed[-1][0] - (_HEIGHT - _BOTTOM)) if placed else 0.0
    return [(max(_TOP, y - over), text) for y, text in placed]
