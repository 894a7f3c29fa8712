"""The queue: bounded in rows and bytes, exact in its counts, quick when full."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from dspark_calib_client.row_queue import RowQueue
from dspark_calib_client.telemetry_options import TelemetryOptions


def queue(**options: Any) -> RowQueue:
    return RowQueue(
        TelemetryOptions(**{"queue_rows": 10, "batch_rows": 4, "batch_seconds": 60.0, **options})
    )


def test_rows_come_out_in_order_and_in_batches() -> None:
    waiting = queue()
    for index in range(9):
        assert waiting.offer(1, 10, index)
    assert waiting.take(at_once=False) == [0, 1, 2, 3]
    assert waiting.take(at_once=False) == [4, 5, 6, 7]
    assert waiting.take(at_once=False) == []  # one row is no batch, and young
    assert waiting.take(at_once=True) == [8]
    assert (waiting.rows, waiting.bytes, waiting.offered, waiting.dropped) == (0, 0, 9, 0)


def test_the_oldest_are_dropped() -> None:
    waiting = queue(drop="oldest")
    for index in range(25):
        waiting.offer(1, 10, index)
    assert (waiting.rows, waiting.dropped, waiting.offered) == (10, 15, 25)
    assert waiting.take(at_once=True) == [15, 16, 17, 18]


def test_the_newest_are_dropped() -> None:
    waiting = queue(drop="newest")
    taken = [waiting.offer(1, 10, index) for index in range(25)]
    assert taken == [True] * 10 + [False] * 15
    assert waiting.take(at_once=True) == [0, 1, 2, 3]
    assert waiting.dropped == 15


def test_bytes_are_bounded_too() -> None:
    waiting = queue(queue_bytes=100)
    for index in range(8):
        waiting.offer(1, 30, index)
    assert (waiting.rows, waiting.bytes, waiting.dropped) == (3, 90, 5)


@pytest.mark.parametrize("drop", ["oldest", "newest"])
def test_what_can_never_fit_drops_itself_alone(drop: str) -> None:
    waiting = queue(drop=drop, queue_bytes=100)
    waiting.offer(1, 30, "small")
    assert not waiting.offer(11, 50, "too many")
    assert not waiting.offer(1, 101, "too large")
    assert (waiting.rows, waiting.dropped) == (1, 12)


def test_a_batch_ends_before_the_entry_that_would_exceed_it() -> None:
    waiting = queue()
    waiting.offer(3, 10, "a")
    waiting.offer(2, 10, "b")
    waiting.offer(3, 10, "c")
    assert waiting.take(at_once=False) == ["a"]
    assert waiting.take(at_once=False) == ["b"]
    large = queue(batch_rows=2)
    large.offer(5, 10, "one entry of five rows")
    assert large.take(at_once=False) == ["one entry of five rows"]


def test_bytes_make_a_batch() -> None:
    waiting = queue(batch_bytes=50)
    waiting.offer(1, 30, "a")
    assert waiting.take(at_once=False) == []
    waiting.offer(1, 30, "b")
    assert waiting.take(at_once=False) == ["a"]


def test_age_makes_a_batch() -> None:
    waiting = queue(batch_seconds=0.3)
    waiting.offer(1, 10, "a")
    assert 0.0 < waiting.due_in() <= 0.3
    time.sleep(waiting.due_in() + 0.001)
    assert waiting.due_in() == 0.0
    assert waiting.take(at_once=False) == ["a"]
    assert waiting.due_in() == 0.3


def test_it_wakes_for_the_first_row_and_for_a_full_batch() -> None:
    waiting = queue()
    waiting.offer(1, 10, 0)
    assert waiting.wake.is_set()
    waiting.wake.clear()
    for index in (1, 2):
        waiting.offer(1, 10, index)
    assert not waiting.wake.is_set()
    waiting.offer(1, 10, 3)
    assert waiting.wake.is_set()


def test_discarding_empties_it() -> None:
    waiting = queue()
    waiting.offer(3, 10, "a")
    assert waiting.discard() == 3
    assert (waiting.rows, waiting.bytes, waiting.take(at_once=True)) == (0, 0, [])


def test_a_child_begins_empty_and_unlocked() -> None:
    waiting = queue()
    waiting.offer(3, 10, "the parent's")
    with waiting._lock:
        waiting.reset_after_fork()
        assert waiting.offer(1, 10, "mine")
    assert (waiting.rows, waiting.offered) == (1, 1)


def test_threads_lose_and_double_nothing() -> None:
    """Four callers offer 5,000 rows each while one thread takes: every row is in one count."""
    waiting = queue(queue_rows=500, batch_rows=64)
    done = threading.Event()
    taken: list[Any] = []

    def take() -> None:
        while not done.is_set() or waiting.rows:
            taken.extend(waiting.take(at_once=True))

    def offer(caller: int) -> None:
        for index in range(5000):
            waiting.offer(1, 10, (caller, index))

    taker = threading.Thread(target=take)
    callers = [threading.Thread(target=offer, args=[caller]) for caller in range(4)]
    for thread in (taker, *callers):
        thread.start()
    for thread in callers:
        thread.join(60.0)
    done.set()
    taker.join(60.0)
    assert waiting.offered == 20_000
    assert len(taken) + waiting.dropped == 20_000
    assert len(set(taken)) == len(taken)
    for caller in range(4):
        mine = [index for who, index in taken if who == caller]
        assert mine == sorted(mine)
