"""From what is known to what a caller sees: fresh, stale or fallback, and how old."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspark_calib_client.knowledge import Held
from dspark_calib_client.temperatures import Source, State, Temperatures

__all__ = ["View", "default_stale_after", "view_of"]

_AGE_STEP = 1.0  # seconds for which a computed age is good enough


@dataclass(frozen=True)
class View:
    """What callers see until something changes.

    Attributes:
        held: what it was made from.
        temperatures: what callers get.
        good_until: monotonic seconds until which it is right.
        state_ends: monotonic seconds at which the state changes by itself; infinity for never.
    """

    held: Held | None
    temperatures: Temperatures
    good_until: float
    state_ends: float


def default_stale_after(interval: float, wait: float, timeout: float) -> float:
    """Seconds without confirmation before numbers are stale: three polls that failed in a row."""
    return 3.0 * max(interval, wait) + timeout


def view_of(
    held: Held,
    gamma: int,
    *,
    monotonic: float,  # seconds, never goes back
    wall: float,  # seconds since the epoch, may jump
    stale_after: float,
) -> View:
    """The caller's view of ``held`` at one instant."""
    state, state_ends = _state(held, monotonic, wall, stale_after)
    age = None if held.confirmed_at is None else max(0.0, monotonic - held.confirmed_at)
    step = math.inf if age is None else monotonic + _AGE_STEP
    temperatures = _temperatures(held, gamma, state, age)
    return View(held, temperatures, min(step, state_ends), state_ends)


def _state(held: Held, monotonic: float, wall: float, stale_after: float) -> tuple[State, float]:
    """The state, and the monotonic instant at which it will change."""
    publication = held.publication
    if publication is None:
        return State.FALLBACK, math.inf
    if held.source is not Source.SERVICE or held.confirmed_at is None:
        return State.STALE, math.inf
    ends = held.confirmed_at + stale_after
    if publication.valid_until is not None:
        ends = min(ends, monotonic + publication.valid_until - wall)
    return (State.FRESH, ends) if monotonic < ends else (State.STALE, math.inf)


def _temperatures(held: Held, gamma: int, state: State, age: float | None) -> Temperatures:
    publication = held.publication
    if publication is None:
        baked_in = held.baked_in
        return Temperatures(
            values=(1.0,) * gamma if baked_in is None else baked_in.values,
            publication=0,
            revision=0 if baked_in is None else baked_in.revision,
            digest=None,
            etag=None,
            state=state,
            source=held.source,
            age=age,
        )
    return Temperatures(
        values=publication.values,
        publication=publication.number,
        revision=publication.revision,
        digest=publication.digest,
        etag=publication.etag or None,
        state=state,
        source=held.source,
        age=age,
        status=publication.status,
        slopes=publication.slopes,
        intercepts=publication.intercepts,
        valid_until=publication.valid_until,
        exploration=publication.exploration,
    )
