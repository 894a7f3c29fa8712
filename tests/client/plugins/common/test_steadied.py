from __future__ import annotations

from dataclasses import replace

from dspark_calib_client import Source, State, Temperatures
from dspark_calib_client.plugins.common.steadied import SteadiedClient

FIRST = Temperatures((1.0,), 1, 1, None, None, State.FRESH, Source.SERVICE, 0.0)


class Service:
    def __init__(self) -> None:
        self.now = FIRST
        self.time = 0.0
        self.steadied = SteadiedClient(
            lambda: self.now, most_changes=3, window=60.0, clock=lambda: self.time
        )

    def change(self, seconds: float = 1.0) -> Temperatures:
        self.time += seconds
        number = self.now.revision + 1
        self.now = replace(self.now, values=(1.0 + number / 8,), revision=number)
        return self.steadied.current()


def test_rare_changes_pass_at_once() -> None:
    service = Service()
    service.steadied.current()
    for _ in range(20):
        assert service.change(25.0) is service.now
    assert service.steadied.holds == 0


def test_flapping_is_held_until_a_quiet_minute() -> None:
    service = Service()
    service.steadied.current()
    passed = [service.change() for _ in range(3)]
    held = service.change()
    assert held is passed[-1]
    assert service.steadied.holding
    for _ in range(100):
        assert service.change() is held
    service.time += 59.0
    assert service.steadied.current() is held
    service.time += 1.0
    assert service.steadied.current() is service.now
    assert (service.steadied.holds, service.steadied.holding) == (1, False)


def test_a_fallback_is_never_held_back() -> None:
    """Another model's key: what was good for the old one may not stay."""
    service = Service()
    service.steadied.current()
    for _ in range(6):
        service.change()
    assert service.steadied.holding
    service.now = replace(service.now, state=State.FALLBACK, source=Source.IDENTITY)
    assert service.steadied.current() is service.now


def test_state_and_age_are_no_changes() -> None:
    service = Service()
    for state in (State.STALE, State.FRESH) * 10:
        service.now = replace(service.now, state=state, age=3.0)
        assert service.steadied.current() is service.now
