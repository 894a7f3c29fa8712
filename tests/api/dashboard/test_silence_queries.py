from __future__ import annotations

from dataclasses import replace

from api.dashboard.silence_queries import Silences, load_silences
from monitoring.store.silences import Silence, add_silence
from tests.api.dashboard import seeding
from tests.support.service import Service

HELD = Silence(1, "first", "drift", 0.0, 100.0, 0.0, "anna", "weights change", None, None)


def test_the_longest_silence_that_matches_counts(shown: Service) -> None:
    event = seeding.raise_event(shown.database, "Drift", drafter="first")
    longer = replace(HELD, id=2, drafter=None, kind=None, ends_at=200.0)
    others = [replace(HELD, id=3, drafter="second"), replace(HELD, id=4, kind="data_quality")]
    found = Silences([HELD, longer, *others], now=50.0)
    assert found.of(event) == longer
    assert Silences(others, now=50.0).of(event) is None
    assert Silences([HELD], now=100.0).of(event) is None  # over
    assert Silences([replace(HELD, starts_at=60.0)], now=50.0).of(event) is None  # not yet
    assert found.of(replace(event, state="resolved")) is None
    assert [one.id for one in found.about("first").listed] == [1, 2, 4]


def test_a_silence_in_words() -> None:
    assert Silences.subject(HELD) == "Drift events of first"
    whole = replace(HELD, drafter=None, kind=None)
    assert Silences.subject(whole) == "Every event of every drafter"


def test_silences_are_read_with_the_databases_clock(shown: Service) -> None:
    with shown.database.write() as connection:
        now = shown.database.now(connection)
        add_silence(connection, ends_at=now + 60.0, reason="r", actor="anna", drafter="second")
        found = load_silences(connection)
    assert found.about("second").listed[0].reason == "r"
    assert abs(found.now - now) < 30.0
