"""Processes killed at any moment: nothing acknowledged lost, nothing torn, nothing twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitoring.store.database import Database
from monitoring.store.drafter_rows import state_of
from monitoring.store.publications import current_publication, get_publication
from monitoring.store.revisions import get_revision, list_revisions
from monitoring.store.telemetry import Batch, batches_after, counters
from tests.monitoring.store.store_fixtures import registered
from tests.monitoring.store.store_processes import run, running


def all_batches(connection: Any) -> list[Batch]:
    return batches_after(connection, "code", 0, limit=10**6, limit_bytes=10**9)


@pytest.mark.slow
def test_r73_killed_after_300_rows_and_one_publication(database: Database) -> None:
    registered(database)
    with running("waits", database.url) as process:
        told = json.loads(process.stdout.readline())
    with database.read() as connection:  # the process is dead
        published = current_publication(connection, "code")
        assert published.document.decode() == told["document"]
        assert state_of(connection, "code").drafter.version == told["version"]
        revision = get_revision(connection, "code", published.revision)
        assert revision.calibration.digest == told["digest"]
        assert sum(found.rows for found in all_batches(connection)) == 300
        assert counters(connection, "code").rows == 300
    registered(database, "after")


@pytest.mark.slow
def test_r73_killed_at_random_moments(database: Database) -> None:
    registered(database)
    said = run("dies", database.url, rounds=20, seed=3)
    acknowledged = [name for line in said for name in line.get("stored", [])]
    published = {line["publication"]: line["document"] for line in said if "publication" in line}
    resumed = [line["resumed"] for line in said if "resumed" in line]
    assert len(acknowledged) > 30
    assert len(published) > 10
    assert resumed == sorted(resumed)
    with database.read() as connection:
        _check_batches(connection, acknowledged)
        _check_publications(connection, published)
    registered(database, "after")


def _check_batches(connection: Any, acknowledged: list[str]) -> None:
    found = all_batches(connection)
    names = [str(item.engine) for item in found]
    assert len(set(names)) == len(names)
    assert set(names) >= set(acknowledged)
    groups = {name.rpartition("-")[0] for name in names}
    assert len(names) == 3 * len(groups)  # a group is there or it is not
    assert all(item.payload == b"\x00payload" for item in found)
    totals = counters(connection, "code")
    assert (totals.batches, totals.rows) == (len(found), 2 * len(found))
    assert totals.stored_bytes == totals.bytes == sum(len(item.payload) for item in found)


def _check_publications(connection: Any, published: dict[int, str]) -> None:
    newest = current_publication(connection, "code")
    assert newest.number >= max(published)
    for number in range(1, newest.number + 1):
        item = get_publication(connection, "code", number)
        assert published.get(number, item.document.decode()) == item.document.decode()
    revisions = list_revisions(connection, "code", limit=10**6)  # each checks its digest
    assert [item.number for item in revisions] == list(range(newest.number - 1, -1, -1))
    state = state_of(connection, "code")
    assert (state.publication, state.aliases.champion) == (newest.number, newest.revision)
    assert state.drafter.version == newest.number
