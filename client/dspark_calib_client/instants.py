"""ISO 8601 instants, which ``datetime`` reads in full only from Python 3.11 on."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

__all__ = ["seconds_of"]

_INSTANT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def seconds_of(text: str) -> float:
    """Seconds since 1970-01-01 UTC of an instant with its offset, such as 2026-11-29T19:30:00Z.

    Raises:
        ValueError: another form, no offset, or a day or time that does not exist.

    Examples:
        >>> seconds_of("1970-01-01T01:00:00.25+01:00")
        0.25
    """
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError(f"not an instant with an offset: {text[:40]!r}")
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    fraction, offset = found.group(7), found.group(8)
    moment = datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc)
    if offset not in "Zz":
        ahead = timedelta(hours=int(offset[1:3]), minutes=int(offset[4:6]))
        moment += -ahead if offset[0] == "+" else ahead
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
