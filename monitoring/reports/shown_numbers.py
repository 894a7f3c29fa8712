"""Numbers of a report as a page shows them, each with its exact value and its place in the JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from monitoring.reports.document_node import Node
from monitoring.reports.markup import Markup, element, escaped, joined

__all__ = [
    "DASH",
    "change",
    "count",
    "decimal",
    "interval",
    "moment",
    "percent",
    "plain_points",
    "points",
    "word",
]

DASH: Final = "–"
Shown = Callable[[Node], Markup]


def points(node: Node) -> Markup:
    """A probability, or a difference of two, in hundredths with one decimal."""
    return _shown(node, plain_points)


def plain_points(value: float) -> str:
    """A probability in hundredths, as text.

    Examples:
        >>> plain_points(0.0421), plain_points(-0.0001)
        ('4.2', '0.0')
    """
    return _signed(f"{100.0 * value:.1f}")


def percent(node: Node) -> Markup:
    """A share of a whole in percent."""
    return _shown(node, lambda value: _signed(f"{100.0 * value:.1f}") + " %")


def decimal(node: Node, digits: int = 3) -> Markup:
    """A number with so many decimals."""
    return _shown(node, lambda value: _signed(f"{value:,.{digits}f}"))


def count(node: Node) -> Markup:
    """A whole number, thousands apart."""
    return _shown(node, lambda value: f"{value:,.0f}")


def interval(node: Node, low: Node, high: Node, shown: Shown = points) -> Markup:
    """A number with its 95 % interval; a dash where there is none."""
    if node.number is None:
        return shown(node)
    if low.number is None or high.number is None:
        return shown(node)
    return joined((shown(node), " [", shown(low), ", ", shown(high), "]"))


def change(before: Node, after: Node, shown: Shown = points) -> Markup:
    """Raw and served, with an arrow; one number where nothing was recalibrated."""
    if before.pointer == after.pointer:
        return shown(before)
    if before.number is None and after.number is None:
        return shown(after)
    return joined((shown(before), " → ", shown(after)))


def moment(node: Node) -> Markup:
    """An instant to the minute, in UTC; as it stands where it is none."""
    try:
        found = datetime.fromisoformat(node.text)
        at = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (OverflowError, ValueError):
        return escaped(node.text)
    return element("time", f"{at:%Y-%m-%d %H:%M} UTC", datetime=node.text)


def word(text: str) -> str:
    """A status word or reason without underscores.

    Examples:
        >>> word("temperature_cannot_fit")
        'temperature cannot fit'
    """
    return text.replace("_", " ")


def _shown(node: Node, text: Callable[[float], str]) -> Markup:
    value = node.number
    if value is None:
        return _missing(node)
    return element("data", text(value), value=repr(node.value), data_at=node.pointer)


def _missing(node: Node) -> Markup:
    return element("span", DASH, class_="none", data_at=node.pointer)


def _signed(text: str) -> str:
    """With a real minus sign, and none before zero."""
    if float(text.replace(",", "")) == 0.0:
        return text.lstrip("-")
    return text.replace("-", "−")
