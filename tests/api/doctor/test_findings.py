"""The gravest finding decides."""

from __future__ import annotations

from api.doctor.findings import Finding, Level, worst


def test_the_gravest_level_decides() -> None:
    levels = [Level.OK, Level.WARN, Level.UNKNOWN]
    assert worst(Finding("a", level, "") for level in levels) is Level.WARN
    assert worst([]) is Level.OK
