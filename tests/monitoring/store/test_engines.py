"""The last thing each engine said stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calib.errors import InvalidInputError
from monitoring.store.database import Database
from monitoring.store.engines import EngineSighting, list_engines, record_sightings
from tests.monitoring.store.store_fixtures import START, registered

SIGHTING = EngineSighting(
    drafter="code",
    engine="engine-1",
    client_version="0.1.0",
    applied_publication=4,
    applied_revision=2,
    state="fresh",
    seen_at=START,
)


def test_newest_sighting_stands_in_whatever_order_they_come(database: Database) -> None:
    registered(database)
    later = replace(SIGHTING, applied_publication=5, state="stale", seen_at=START + 10)
    with database.write() as connection:
        assert record_sightings(connection, [later, SIGHTING]) == 1
        record_sightings(connection, [replace(SIGHTING, seen_at=START + 5)])
        (row,) = list_engines(connection, "code")
        assert (row.applied_publication, row.state, row.seen_at) == (5, "stale", START + 10)
        unknown = replace(SIGHTING, client_version=None, applied_revision=None, seen_at=START + 20)
        record_sightings(connection, [unknown])
        (row,) = list_engines(connection, "code")
    assert (row.client_version, row.applied_revision, row.seen_at) == (None, None, START + 20)
    assert row.first_seen_at == START + 10


def test_many_engines_of_several_drafters(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    seen = [replace(SIGHTING, engine=f"engine-{n:04}") for n in range(1200)]
    seen.append(replace(SIGHTING, drafter="chat"))
    with database.write() as connection:
        assert record_sightings(connection, seen) == 1201
        rows = list_engines(connection, "code")
        assert [row.engine for row in rows] == [f"engine-{n:04}" for n in range(1200)]
        assert [row.drafter for row in list_engines(connection, "chat")] == ["chat"]


def test_unknown_drafters_are_left_out(database: Database) -> None:
    with database.write() as connection:
        assert record_sightings(connection, [SIGHTING]) == 0
        assert record_sightings(connection, []) == 0
        assert list_engines(connection, "code") == []


def test_impossible_text_is_refused(database: Database) -> None:
    registered(database)
    with database.write() as connection, pytest.raises(InvalidInputError, match="engine"):
        record_sightings(connection, [replace(SIGHTING, engine="a\0b")])
