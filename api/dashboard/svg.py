"""SVG as text: elements with escaped attributes, and scales from values to pixels.

No drawing library: the API process stays small, and a page needs no script to show a chart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["LinearScale", "drawing", "element", "number", "path_data", "ticks"]

Point = tuple[float, float]

_STEPS = (1.0, 2.0, 5.0, 10.0)


def number(value: float) -> str:
    """A coordinate with at most two decimals, without trailing zeros.

    Examples:
        >>> number(1.0), number(0.126), number(-0.001)
        ('1', '0.13', '0')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def element(tag: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """One element; text and attribute values are escaped, attributes that are None left out.

    Args:
        tag: its name.
        *children: markup, or text to escape.
        **attributes: ``class_`` is ``class``; other underscores become hyphens. Numbers are
            coordinates.
    """
    parts = [
        f' {name.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for name, value in attributes.items()
        if value is not None
    ]
    inner = "".join(str(escape(child)) for child in children)
    return Markup(f"<{tag}{''.join(parts)}>{inner}</{tag}>")  # every part is escaped


def drawing(
    width: float, height: float, *children: Markup, label: str, class_: str = "chart"
) -> Markup:
    """A chart that readers without sight meet as one image with a description.

    Args:
        width: of the view box.
        height: of the view box.
        *children: what is drawn.
        label: the description.
        class_: for the style sheet.
    """
    return element(
        "svg",
        *children,
        class_=class_,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=label,
    )


def path_data(points: Iterable[Point], *, closed: bool = False) -> str:
    """The ``d`` of a path through the points, in order; empty without points.

    Examples:
        >>> path_data([(0, 0), (1, 2.5)], closed=True)
        'M0,0L1,2.5Z'
    """
    joined = "L".join(f"{number(x)},{number(y)}" for x, y in points)
    return f"M{joined}{'Z' if closed else ''}" if joined else ""


@dataclass(frozen=True, slots=True)
class LinearScale:
    """Values to pixels, along a straight line.

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
            return (self.start + self.end) / 2
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)


def ticks(low: float, high: float, count: int) -> Sequence[float]:
    """About ``count`` round values between ``low`` and ``high``, steps of 1, 2 or 5 times 10ⁿ.

    Examples:
        >>> ticks(0, 9, 3)
        [0.0, 5.0]
    """
    if not high > low or count < 1:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
