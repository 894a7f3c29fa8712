"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from monitoring.reports.markup import Markup, element, joined

__all__ = [
    "ago",
    "count",
    "evidence",
    "moment",
    "plural",
    "points",
    "power_of_ten",
    "seconds_of",
    "signed",
    "signed_points",
]

_DASH: Final = "–"
_RAISED: Final = str.maketrans("0123456789.-", "⁰¹²³⁴⁵⁶⁷⁸⁹·⁻")


def points(value: float | None) -> str:
    """A probability in hundredths with one decimal; a dash where it is unknown.

    Examples:
        >>> points(0.0421), points(None)
        ('4.2', '–')
    """
    if value is None:
        return _DASH
    text = f"{100.0 * value:.1f}"
    return "0.0" if text == "-0.0" else text


def signed_points(gap: float) -> str:
    """A gap of confidence in words, positive is overconfident.

    Examples:
        >>> signed_points(0.04), signed_points(-0.013)
        ('overconfident by 4.0 points', 'underconfident by 1.3 points')
    """
    word = "overconfident" if gap > 0 else "underconfident"
    return f"{word} by {points(abs(gap))} points"


def count(value: float | None) -> str:
    """A number with thousands apart; a dash where it is unknown.

    Examples:
        >>> count(31006), count(None)
        ('31,006', '–')
    """
    return _DASH if value is None else f"{value:,.0f}"


def plural(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    Examples:
        >>> plural(1, "engine"), plural(3, "engine"), plural(2, "query", "queries")
        ('1 engine', '3 engines', '2 queries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def evidence(log10: float | None) -> Markup:
    """An e-value given by its decimal logarithm: 12.5, or a power of ten from a thousand on."""
    if log10 is None:
        return Markup(_DASH)
    if log10 < 3.0:
        return Markup(f"{10.0**log10:.3g}" if log10 > -3 else "0")
    return joined(["10", element("sup", f"{log10:.1f}".removesuffix(".0"))])


def power_of_ten(log10: float) -> str:
    """A power of ten in plain text.

    Examples:
        >>> power_of_ten(6.0), power_of_ten(7.25)
        ('10⁶', '10⁷·²')
    """
    exponent = f"{log10:.1f}".removesuffix(".0")
    return "10" + exponent.translate(_RAISED)


def signed(value: float | None) -> str:
    """A difference of probabilities in hundredths with its sign; a dash where it is unknown.

    Examples:
        >>> signed(0.006), signed(-0.0004)
        ('+0.6', '0.0')
    """
    text = points(value)
    return text if value is None or text.startswith(("-", "0.0")) else f"+{text}"


def seconds_of(iso: str | None) -> float | None:
    """Seconds since the epoch of an ISO 8601 instant; None where it is none."""
    try:
        found = datetime.fromisoformat(iso) if iso else None
    except ValueError:
        return None
    if found is None:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def moment(at: float | str | None) -> Markup:
    """An instant as a ``time`` element in UTC, which the script turns into an age."""
    seconds = seconds_of(at) if isinstance(at, str) else at
    if seconds is None:
        return Markup(_DASH)
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return Markup(_DASH)
    machine = found.isoformat(timespec="seconds").replace("+00:00", "Z")
    return element("time", found.strftime("%Y-%m-%d %H:%M UTC"), datetime=machine)


def ago(seconds: float) -> str:
    """An age in one unit.

    Examples:
        >>> ago(42), ago(200), ago(7300), ago(200_000)
        ('42 s', '3 min', '2 h', '2 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 129_600 else f"{seconds / 86_400:.0f} days"
