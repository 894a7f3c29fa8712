"""ISO 8601 instants, checked against the standard library of a Python that reads them all."""

from __future__ import annotations

from datetime import datetime

import pytest

from dspark_calib_client.instants import seconds_of


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00Z",
        "2026-11-29T19:30:00.123Z",
        "2026-11-29T19:30:00.123456+05:30",
        "2024-02-29T23:59:59-08:00",
    ],
)
def test_it_agrees_with_the_standard_library(text: str) -> None:
    assert seconds_of(text) == pytest.approx(datetime.fromisoformat(text).timestamp(), abs=1e-6)


def test_nanoseconds_are_read() -> None:
    assert seconds_of("1970-01-01T00:00:01.123456789Z") == pytest.approx(1.123456789, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-29",
        "2026-11-29T19:30:00",
        "2026-02-30T00:00:00Z",
        "2026-11-29T24:00:01Z",
        "now",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        seconds_of(text)
