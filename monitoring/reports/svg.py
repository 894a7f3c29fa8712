"""Drawings as SVG text: scales from values to pixels, paths, round tick marks.

No drawing library and no script: a page that holds them is one file, and prints.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from monitoring.reports.markup import Markup, element, number

__all__ = ["LinearScale", "drawing", "path_data", "text_mark", "ticks"]

Point = tuple[float, float]

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class LinearScale:
    """Values to pixels along a straight line.

    Attributes:
        low: value that falls on ``start``.
        high: value that falls on ``end``.
        start: pixel of ``low``.
        end: pixel of ``high``.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value; values outside fall on the nearer end."""
        if self.high == self.low:
            return (self.start + self.end) / 2.0
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def drawing(width: float, height: float, *children: Markup, label: str, class_: str) -> Markup:
    """A chart that readers without sight meet as one image with a description.

    Args:
        width: of the view box.
        height: of the view box.
        *children: what is drawn.
        label: the description.
        class_: for the style sheet.
    """
    box = f"0 0 {number(width)} {number(height)}"
    return element("svg", *children, class_=class_, viewBox=box, role="img", aria_label=label)


def path_data(points: Iterable[Point], *, closed: bool = False) -> str:
    """The ``d`` of a path through the points, in order; empty without points.

    Examples:
        >>> path_data([(0, 0), (1, 2.5)], closed=True)
        'M0,0L1,2.5Z'
    """
    said = "L".join(f"{number(x)},{number(y)}" for x, y in points)
    return f"M{said}{'Z' if closed else ''}" if said else ""


def text_mark(x: float, y: float, text: str, class_: str) -> Markup:
    """A word at a place; the style sheet says how it is anchored."""
    return element("text", text, class_=class_, x=float(x), y=float(y))


def ticks(low: float, high: float, most: int) -> Sequence[float]:
    """At most about ``most`` round values between ``low`` and ``high``: steps of 1, 2, 5 · 10ⁿ.

    Examples:
        >>> ticks(0, 9, 3), ticks(0, 0.034, 4)
        ([0.0, 5.0], [0.0, 0.01, 0.02, 0.03])
    """
    if not high > low or most < 1:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * (1.0 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]
