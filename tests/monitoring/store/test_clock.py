"""Lease time never goes back and never stands still, whatever the machine's clock does."""

from __future__ import annotations

import time

from monitoring.store.clock import SteadyClock, system_clock
from tests.monitoring.store.store_fixtures import START, ManualClock


def test_system_clock_is_seconds_since_the_epoch() -> None:
    assert abs(system_clock() - time.time()) < 5.0


def test_steady_clock_walks_on_when_the_wall_clock_is_set_back() -> None:
    wall, walked = ManualClock(), ManualClock(50.0)
    clock = SteadyClock(wall, walked)
    assert clock() == START
    wall.seconds, walked.seconds = START + 10, 60.0
    assert clock() == START + 10
    wall.seconds, walked.seconds = START - 3600, 65.0  # set back by an hour, five seconds later
    assert clock() == START + 15
    wall.seconds, walked.seconds = START - 3580, 85.0
    assert clock() == START + 35
    wall.seconds, walked.seconds = START + 36, 86.0  # set right again
    assert clock() == START + 36


def test_steady_clock_follows_the_latest_time_others_have_seen() -> None:
    wall, walked = ManualClock(), ManualClock(0.0)
    clock = SteadyClock(wall, walked)
    assert clock(START + 100) == START + 100
    walked.seconds = 3.0
    assert clock() == START + 103
    assert clock(START) == START + 103


def test_steady_clock_ignores_a_monotonic_clock_that_jumps_back() -> None:
    wall, walked = ManualClock(), ManualClock(100.0)
    clock = SteadyClock(wall, walked)
    walked.seconds = 0.0
    assert clock() == START
    assert clock.wall() == START
