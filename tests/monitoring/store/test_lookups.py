"""Whatever somebody looks for, the answer is "not there" and never a failing database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from calib.errors import InvalidInputError
from monitoring.store import (
    audit,
    drafters,
    engines,
    events,
    jobs,
    publications,
    reports,
    revisions,
    telemetry,
    tokens,
)
from monitoring.store.database import Database
from monitoring.store.errors import NotFoundError
from tests.monitoring.store.store_fixtures import START, batch, registered

HUGE = 10**30
STRANGE = ["a\0b", "\ud800", "Ä", "x" * 5000, "", "' OR 1=1 --"]

LOOK_UPS: dict[str, Callable[[Any, str], object]] = {
    "drafter": drafters.get,
    "aliases": revisions.aliases,
    "revision": lambda connection, name: revisions.get_revision(connection, name, 0),
    "revisions": revisions.list_revisions,
    "publication": publications.current_publication,
    "counters": telemetry.counters,
    "rejects": lambda connection, name: telemetry.count_rejects(connection, name, 1, 1),
    "batches": lambda connection, name: telemetry.store_batches(connection, [batch(name)]),
    "job": jobs.get_job,
    "enqueue": lambda connection, name: jobs.enqueue(connection, name, "report", {}, actor="a"),
    "token": tokens.revoke_token,
}


@pytest.mark.parametrize("what", LOOK_UPS)
def test_strange_names_are_not_there(database: Database, what: str) -> None:
    registered(database)
    with database.write() as connection:
        for strange in STRANGE:
            with pytest.raises(NotFoundError):
                LOOK_UPS[what](connection, strange)


def test_strange_filters_match_nothing(database: Database) -> None:
    registered(database)
    with database.read() as connection:
        for strange in STRANGE:
            assert audit.list_audit(connection, drafter=strange) == []
            assert events.list_events(connection, drafter=strange) == []
            assert jobs.list_jobs(connection, drafter=strange) == []
            assert jobs.list_jobs(connection, before=strange) == []
            assert tokens.authenticate(connection, strange) is None
            assert telemetry.find_answer(connection, strange, "token", "key") is None


@pytest.mark.parametrize("number", [-1, -HUGE, HUGE, 2**31 - 1, 2**31, 2**63 - 1, 2**63])
def test_numbers_beyond_every_column_are_not_there(database: Database, number: int) -> None:
    registered(database)
    with database.write() as connection:
        for look_up in (
            lambda: revisions.get_revision(connection, "code", number),
            lambda: revisions.set_challenger(connection, "code", number, actor="tests"),
            lambda: publications.get_publication(connection, "code", number),
            lambda: events.get_event(connection, number),
            lambda: events.acknowledge(connection, number, "tests"),
        ):
            with pytest.raises(NotFoundError):
                look_up()


def test_pages_before_and_limits_beyond_every_column(database: Database) -> None:
    registered(database)
    with database.read() as connection:
        assert len(revisions.list_revisions(connection, "code", before=HUGE, limit=HUGE)) == 1
        assert len(audit.list_audit(connection, before=HUGE, limit=HUGE)) == 1
        assert events.list_events(connection, before=HUGE, limit=HUGE) == []
        assert reports.list_reports(connection, "code", before=HUGE, limit=HUGE) == []
        assert jobs.list_jobs(connection, limit=HUGE) == []
        assert telemetry.batches_after(connection, "code", HUGE, limit=HUGE) == []
        assert revisions.list_revisions(connection, "code", before=-HUGE) == []


def test_engine_that_claims_impossible_numbers(database: Database) -> None:
    registered(database)
    told = engines.EngineSighting("code", "e", "1", HUGE, -HUGE, "fresh", START)
    with database.write() as connection:
        engines.record_sightings(connection, [told])
        (row,) = engines.list_engines(connection, "code")
    assert (row.applied_publication, row.applied_revision) == (2**63 - 1, -1)


def test_impossible_keys_are_named(database: Database) -> None:
    registered(database)
    with database.read() as connection, pytest.raises(InvalidInputError, match="idempotency_key"):
        telemetry.find_answer(connection, "code", "token", "a\0b")
