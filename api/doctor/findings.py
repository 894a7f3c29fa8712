"""A finding: what was looked at, how it stands, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Level", "worst"]


class Level(StrEnum):
    """How a finding stands."""

    OK = "ok"
    UNKNOWN = "unknown"  # could not be looked at
    WARN = "warn"  # works, but not as well as it could
    FAIL = "fail"  # does not do what it is there for


_ORDER = (Level.OK, Level.UNKNOWN, Level.WARN, Level.FAIL)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: short name, stable for scripts.
        level: how it stands.
        text: what was found, in one sentence.
        remedy: what to do; None where nothing is to be done.
    """

    check: str
    level: Level
    text: str
    remedy: str | None = None


def worst(findings: Iterable[Finding]) -> Level:
    """The gravest level; ``ok`` for none."""
    return max((finding.level for finding in findings), key=_ORDER.index, default=Level.OK)
