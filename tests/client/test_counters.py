"""Counters lose nothing between threads."""

from __future__ import annotations

import threading

from dspark_calib_client.counters import Counters


def test_threads_count_together() -> None:
    counters = Counters()

    def count() -> None:
        for _ in range(5000):
            counters.add("polls")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert counters.value("polls") == 20_000


def test_a_snapshot_is_a_copy() -> None:
    counters = Counters()
    counters.add("rows", 3)
    snapshot = counters.snapshot()
    counters.add("rows")
    assert snapshot == {"rows": 3}
    assert counters.value("never") == 0


def test_a_child_begins_at_zero() -> None:
    counters = Counters()
    counters.add("rows", 3)
    counters.reset_after_fork()
    assert counters.snapshot() == {}
