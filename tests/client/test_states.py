"""Fresh, stale, fallback: by the clock of contact and by the publication's own time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dspark_calib_client.knowledge import BakedIn, Held
from dspark_calib_client.states import View, default_stale_after, view_of
from dspark_calib_client.temperatures import Source, State
from dspark_calib_client.validation import Expected, read_publication
from tests.client.stand_in_service import DRAFTER, GAMMA, etag_of, publication_body


def held(source: Source = Source.SERVICE, at: float | None = 100.0, **changes: Any) -> Held:
    body = publication_body(publication=4, revision=2, **changes)
    found = read_publication(body, etag_of(body), Expected(DRAFTER, GAMMA, None))
    return Held(source, found, None, at)


def view(what: Held, monotonic: float, wall: float = 0.0) -> View:
    return view_of(what, GAMMA, monotonic=monotonic, wall=wall, stale_after=30.0)


def test_identity_is_a_fallback_for_good() -> None:
    seen = view(Held(Source.IDENTITY, None, None, None), 5.0)
    assert seen.temperatures.values == (1.0, 1.0, 1.0)
    assert seen.temperatures.state is State.FALLBACK
    assert seen.temperatures.age is None
    assert (seen.temperatures.publication, seen.temperatures.revision) == (0, 0)
    assert seen.good_until == seen.state_ends == math.inf


def test_baked_in_numbers_are_a_fallback_of_unknown_revision() -> None:
    bundle = BakedIn((1.5, 1.25, 1.0))
    seen = view(Held(Source.BAKED_IN, None, bundle, None), 5.0).temperatures
    assert (seen.values, seen.revision, seen.state) == ((1.5, 1.25, 1.0), -1, State.FALLBACK)


@pytest.mark.parametrize(
    ("now", "state"),
    [(100.0, "fresh"), (129.9, "fresh"), (130.0, "stale"), (1e9, "stale")],
)
def test_contact_grows_old(now: float, state: str) -> None:
    seen = view(held(), now).temperatures
    assert seen.state == state
    assert seen.age == pytest.approx(now - 100.0)
    assert seen.publication == 4  # stale numbers stay in use


def test_a_publication_has_its_own_time() -> None:
    ends = held(valid_until="1970-01-01T00:16:40Z")  # 1,000 s
    assert view(ends, 105.0, wall=999.0).temperatures.state is State.FRESH
    assert view(ends, 105.0, wall=1000.0).temperatures.state is State.STALE
    assert view(ends, 105.0, wall=990.0).state_ends == 115.0


def test_a_wall_clock_that_is_set_back_makes_it_valid_again() -> None:
    ends = held(valid_until="1970-01-01T00:16:40Z")
    assert view(ends, 106.0, wall=2000.0).temperatures.state is State.STALE
    assert view(ends, 107.0, wall=500.0).temperatures.state is State.FRESH


def test_a_file_is_stale_until_the_service_agrees() -> None:
    assert view(held(Source.FILE), 100.0).temperatures.state is State.STALE
    confirmed = replace(held(Source.FILE), source=Source.SERVICE, confirmed_at=100.0)
    assert view(confirmed, 100.0).temperatures.state is State.FRESH


def test_a_view_is_good_for_a_second_or_until_the_state_ends() -> None:
    assert view(held(), 100.0).good_until == 101.0
    assert view(held(), 129.5).good_until == 130.0
    assert view(held(), 200.0).good_until == 201.0


def test_age_never_is_negative() -> None:
    assert view(held(at=100.0), 99.0).temperatures.age == 0.0


def test_three_polls_may_fail() -> None:
    assert default_stale_after(30.0, 30, 10.0) == 100.0
    assert default_stale_after(5.0, 60, 10.0) == 190.0
