"""Delays: spread by name, growing with failures, never beyond their caps."""

from __future__ import annotations

import pytest

from dspark_calib_client.backoff import (
    LONGEST_RETRY_AFTER,
    Backoff,
    retry_after_seconds,
    seeded_offset,
)

NOW = 1_000_000_000.0  # 2001-09-09T01:46:40Z


def test_offsets_depend_on_the_name_alone() -> None:
    assert seeded_offset("engine-0", 30.0) == seeded_offset("engine-0", 30.0)
    assert seeded_offset("engine-0", 30.0) != seeded_offset("engine-1", 30.0)


def test_offsets_spread_a_fleet_evenly() -> None:
    """2,000 names over 10 bins of 3 s: 200 each, within five standard deviations (13.4)."""
    bins = [0] * 10
    for index in range(2000):
        offset = seeded_offset(f"engine-{index}", 30.0)
        assert 0.0 <= offset < 30.0
        bins[int(offset / 3.0)] += 1
    assert max(abs(count - 200) for count in bins) < 67


def test_offsets_are_stable_over_releases() -> None:
    """By hand: the first 8 bytes of SHA-256("engine-0") modulo 30,000,000 microseconds."""
    import hashlib

    first = int(hashlib.sha256(b"engine-0").hexdigest()[:16], 16)
    assert seeded_offset("engine-0", 30.0) == first % 30_000_000 / 1e6


@pytest.mark.parametrize("interval", [0.0001, 0.5, 1e9])
def test_any_interval_has_offsets(interval: float) -> None:
    assert 0.0 <= seeded_offset("engine", interval) < max(interval, 1e-3)


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(1.0, 60.0, "seed")
    for n in range(2000):
        full = min(2.0**n, 60.0) if n < 10 else 60.0
        assert full / 2 <= backoff.failed() <= full
    assert backoff.failures == 2000


def test_success_begins_anew() -> None:
    backoff = Backoff(1.0, 60.0, "seed")
    for _ in range(10):
        backoff.failed()
    backoff.succeeded()
    assert backoff.failed() <= 1.0


def test_jitter_differs_between_engines_and_repeats_for_one() -> None:
    def delays(seed: str) -> list[float]:
        backoff = Backoff(1.0, 60.0, seed)
        return [backoff.failed() for _ in range(5)]

    assert delays("a") == delays("a")
    assert delays("a") != delays("b")


def test_the_service_may_ask_for_more() -> None:
    assert Backoff(1.0, 60.0, "seed").failed(45.0) == 45.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 0 ", 0.0),
        ("-3", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("999999999999999999999999", LONGEST_RETRY_AFTER),
        ("Sun, 09 Sep 2001 01:47:10 GMT", 30.0),
        ("Sun, 09 Sep 2001 01:46:00 GMT", 0.0),
        ("Sun, 09 Sep 2096 01:46:00 GMT", LONGEST_RETRY_AFTER),
        ("Sun, 99 Sep 2001 01:46:00 GMT", None),
    ],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(header, NOW) == seconds
