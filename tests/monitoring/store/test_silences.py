"""Silences: who, what, until when, and who said so."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from sqlalchemy import update

from calib.errors import InvalidInputError
from monitoring.store import silences, tables
from monitoring.store.audit import list_audit
from monitoring.store.database import Database, current_time
from monitoring.store.errors import NotFoundError
from tests.monitoring.store.store_fixtures import ManualClock, registered


def test_a_silence_matches_drafter_and_kind_until_it_ends(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    with database.write() as connection:
        now = current_time(connection)
        silences.add_silence(
            connection, drafter="code", kind="drift", ends_at=now + 60, reason="x", actor="anna"
        )
        silences.add_silence(connection, kind="job_failed", ends_at=now + 90, reason="x", actor="a")
        until = silences.silenced_until
        assert until(connection, "code", "drift") == now + 60
        assert until(connection, "code", "data_quality") is None
        assert until(connection, "chat", "drift") is None
        assert until(connection, None, "drift") is None
        assert until(connection, None, "job_failed") == now + 90
        assert until(connection, "chat", "job_failed") == now + 90


def test_a_silence_that_begins_later_or_is_over_hides_nothing(database_url: str) -> None:
    clock = ManualClock()
    with (
        closing(Database.open(database_url, clock=clock)) as database,
        database.write() as connection,
    ):
        now = current_time(connection)
        for starts_at, ends_at in ((now + 50, now + 60), (now, now + 0.5)):
            silences.add_silence(
                connection, starts_at=starts_at, ends_at=ends_at, reason="x", actor="a"
            )
        clock.seconds += 0.6
        time.sleep(0.6 if database.dialect == "postgresql" else 0.0)  # it has its own clock
        assert silences.silenced_until(connection, "code", "drift") is None
        assert len(silences.list_silences(connection)) == 1
        assert len(silences.list_silences(connection, over_too=True)) == 2


def test_a_removed_silence_stays_in_the_record(database: Database) -> None:
    with database.write() as connection:
        now = current_time(connection)
        made = silences.add_silence(connection, ends_at=now + 60, reason="weights", actor="anna")
        removed = silences.remove_silence(connection, made.id, actor="bert")
        again = silences.remove_silence(connection, made.id, actor="carl")
        assert (removed.removed_by, again.removed_by) == ("bert", "bert")
        assert silences.silenced_until(connection, None, "drift") is None
        assert silences.list_silences(connection) == []
        rows = [(row.action, row.actor) for row in list_audit(connection)]
    assert rows == [("unsilence", "bert"), ("silence", "anna")]


@pytest.mark.parametrize("seconds", [-1.0, 0.0, silences.LONGEST_SECONDS + 60, float("nan")])
def test_an_end_that_is_none_is_refused(database: Database, seconds: float) -> None:
    with database.write() as connection:
        ends_at = current_time(connection) + seconds
        with pytest.raises(InvalidInputError, match="ends_at"):
            silences.add_silence(connection, ends_at=ends_at, reason="x", actor="a")


def test_a_kind_that_no_event_has_is_refused_and_an_old_one_still_reads(
    database: Database,
) -> None:
    with database.write() as connection:
        ends_at = current_time(connection) + 60
        with pytest.raises(InvalidInputError, match=r"kind: got 'drfit'; give one of .*, drift, "):
            silences.add_silence(connection, kind="drfit", ends_at=ends_at, reason="x", actor="a")
        made = silences.add_silence(
            connection, kind="drift", ends_at=ends_at, reason="x", actor="a"
        )
        old = update(tables.silences).where(tables.silences.c.id == made.id).values(kind="drfit")
        connection.execute(old)
        assert [one.kind for one in silences.list_silences(connection)] == ["drfit"]
        assert silences.silenced_until(connection, None, "drift") is None
        assert silences.remove_silence(connection, made.id, actor="a").kind == "drfit"


def test_what_does_not_exist_is_named(database: Database) -> None:
    with database.write() as connection:
        ends_at = current_time(connection) + 60
        with pytest.raises(NotFoundError):
            silences.add_silence(connection, drafter="no", ends_at=ends_at, reason="x", actor="a")
        with pytest.raises(NotFoundError):
            silences.remove_silence(connection, 7, actor="a")
