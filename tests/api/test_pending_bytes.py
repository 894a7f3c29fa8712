"""Bytes in memory are counted once, by whoever holds them, and never beyond the limit."""

from __future__ import annotations

import threading

import pytest

from api.pending_bytes import PendingBytes, QueueFullError
from api.problems import ProblemError


def test_a_reservation_grows_shrinks_and_ends() -> None:
    pending = PendingBytes(100)
    with pending.reserve() as held:
        held.grow(60)
        held.grow(40)
        assert pending.used == 100
        held.shrink(10)
        held.shrink(50)  # not more than it has
        assert (held.size, pending.used) == (10, 10)
    assert pending.used == 0


def test_what_does_not_fit_is_refused_whole() -> None:
    pending = PendingBytes(100, lambda: 7)
    with pending.reserve() as other, pending.reserve() as held:
        other.grow(20)
        held.grow(70)
        with pytest.raises(QueueFullError) as caught:
            held.grow(11)
        assert (held.size, pending.used) == (70, 90)
    assert caught.value.kind.status == 429
    assert caught.value.headers["Retry-After"] == "7"


def test_what_will_never_fit_is_not_asked_to_come_again() -> None:
    pending = PendingBytes(100)
    with pending.reserve() as held:
        held.grow(90)
        with pytest.raises(ProblemError) as caught:
            held.grow(11)
        assert (held.size, pending.used) == (90, 90)
    assert caught.value.kind.status == 413
    assert caught.value.extensions == {"limit_bytes": 100}
    assert "Retry-After" not in caught.value.headers


def test_an_error_gives_everything_back() -> None:
    pending = PendingBytes(100)

    def fail() -> None:
        with pending.reserve() as held:
            held.grow(50)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert pending.used == 0


def test_bytes_that_were_handed_over_outlive_their_request() -> None:
    pending = PendingBytes(100)
    with pending.reserve() as held:
        held.grow(50)
        successor = held.handed_over()
    assert pending.used == 50
    successor.release()
    successor.release()
    assert pending.used == 0


def test_threads_do_not_lose_count() -> None:
    pending = PendingBytes(10**9)

    def work() -> None:
        for _ in range(2000):
            with pending.reserve() as held:
                held.grow(3)
                held.grow(4)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert pending.used == 0
