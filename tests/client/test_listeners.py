"""Listeners hear of every change once, and cannot harm the poller."""

from __future__ import annotations

from dataclasses import replace

from dspark_calib_client import Source, State, Temperatures
from dspark_calib_client.counters import Counters
from dspark_calib_client.listeners import Listeners

FIRST = Temperatures((1.0,), 0, 0, None, None, State.FALLBACK, Source.IDENTITY, None)
NEXT = Temperatures((1.5,), 2, 1, None, None, State.FRESH, Source.SERVICE, 0.1)


def test_only_changes_are_told() -> None:
    heard: list[Temperatures] = []
    listeners = Listeners(Counters(), FIRST)
    listeners.add(heard.append)
    assert not listeners.notice(FIRST)
    assert listeners.notice(NEXT)
    assert not listeners.notice(replace(NEXT, age=3.0))  # older, and nothing else
    stale = replace(NEXT, state=State.STALE)
    assert listeners.notice(stale)
    assert heard == [NEXT, stale]


def test_affine_numbers_are_numbers() -> None:
    listeners = Listeners(Counters(), NEXT)
    assert listeners.notice(replace(NEXT, slopes=(1.0,), intercepts=(0.5,)))


def test_another_share_to_explore_is_news_under_the_same_publication() -> None:
    listeners = Listeners(Counters(), NEXT)
    assert listeners.notice(replace(NEXT, exploration=0.005))


def test_a_listener_that_raises_is_counted_and_the_others_are_called() -> None:
    heard: list[Temperatures] = []
    counters = Counters()
    listeners = Listeners(counters, FIRST)

    def fail(temperatures: Temperatures) -> None:
        raise RuntimeError("no buffer")

    listeners.add(fail)
    listeners.add(heard.append)
    listeners.notice(NEXT)
    listeners.notice(FIRST)
    assert heard == [NEXT, FIRST]
    assert counters.value("listener_errors") == 2
