"""Publications: a counter that only grows, stored bytes, and one winner of two promoters."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from calib.errors import InvalidInputError
from monitoring.store import events, publications, tables
from monitoring.store.audit import list_audit
from monitoring.store.database import Database
from monitoring.store.drafter_rows import Aliases, Drafter, state_of
from monitoring.store.errors import NotFoundError, PreconditionFailedError, StoreError
from monitoring.store.revisions import Revision, add_revision, aliases, set_challenger
from tests.monitoring.store.store_fixtures import (
    document,
    only_postgresql,
    registered,
    temperatures,
)
from tests.monitoring.store.store_processes import run
from tests.postgres_server import shared_server


def add(connection: Any, *values: float) -> int:
    made = add_revision(
        connection, "code", temperatures(*values), provenance={"by": "hand"}, actor="tests"
    )
    return made.number


def publish(connection: Any, revision: int, **changes: Any) -> publications.Publication:
    options = {"expected_version": None, "actor": "tests", "reason": "test", "document": document}
    return publications.publish(connection, "code", revision, **(options | changes))


def test_promotion_moves_aliases_and_stores_bytes(database: Database) -> None:
    registered(database)
    seen: list[tuple[int, Revision, Drafter, float]] = []

    def keep(number: int, revision: Revision, drafter: Drafter, published_at: float) -> bytes:
        seen.append((number, revision, drafter, published_at))
        return b"\x00bytes"

    with database.write() as connection:
        add(connection, 1.5, 2, 3)
        set_challenger(connection, "code", 1, actor="tests")
        found = publish(
            connection, 1, expected_version=2, document=keep, request_id="r-7", valid_for_seconds=9
        )
        assert aliases(connection, "code") == Aliases(champion=1, challenger=None, previous=0)
        audited = list_audit(connection, drafter="code")[0]
        noticed = events.list_events(connection, drafter="code")[0]
    ((number, revision, drafter, published_at),) = seen
    assert (number, revision.number, drafter.version) == (2, 1, 3)
    assert found.document == b"\x00bytes"
    assert (found.number, found.revision, found.published_at) == (2, 1, published_at)
    assert found.valid_until == published_at + 9
    assert (audited.action, audited.actor, audited.request_id) == ("publish", "tests", "r-7")
    assert audited.details == {"publication": 2, "revision": 1, "replaced": 0, "reason": "test"}
    assert (noticed.kind, noticed.state) == ("publication", "resolved")


def test_numbers_grow_on_rollback_too(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        add(connection, 1.5, 2, 3)
        publish(connection, 1)
        back = publish(connection, 0)  # a rollback is the publication of `previous`
        assert (back.number, back.revision, back.valid_until) == (3, 0, None)
        assert aliases(connection, "code") == Aliases(champion=0, challenger=None, previous=1)
        again = publish(connection, 0)
        assert again.number == 4
        assert aliases(connection, "code").previous == 1
    with database.read() as connection:
        assert publications.current_publication(connection, "code") == again
        stored = [publications.get_publication(connection, "code", n).revision for n in (1, 2, 3)]
        assert stored == [0, 1, 0]
        assert publications.publication_numbers(connection) == {"code": 4}


def test_exploration_changes_under_a_publication_and_ends_with_another_champion(
    database: Database,
) -> None:
    registered(database)

    def ask(connection: Any, raised: bool, publication: int) -> bool:
        return publications.raise_exploration(connection, "code", raised, publication=publication)

    with database.write() as connection:
        add(connection, 1.5, 2, 3)
        before = state_of(connection, "code")
        assert not before.drafter.explores_more
        assert not ask(connection, False, 1)
        assert ask(connection, True, 1)
        assert not ask(connection, True, 1)
        raised = state_of(connection, "code")
        assert raised.drafter.explores_more
        assert raised.drafter.version == before.drafter.version  # nobody's If-Match is old by it
        assert publications.editions(connection) == {"code": (1, 1)}
        publish(connection, 0)  # the champion once more: what is suspected of it still is
        assert publications.editions(connection) == {"code": (2, 1)}
        publish(connection, 1)
        assert publications.editions(connection) == {"code": (3, 2)}
        assert not ask(connection, True, 2)  # judged another champion
        assert ask(connection, True, 3)
        assert ask(connection, False, 3)
        assert publications.editions(connection) == {"code": (3, 4)}


def test_challenger_that_was_not_promoted_stays(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        add(connection, 1.5, 2, 3)
        add(connection, 1.6, 2, 3)
        set_challenger(connection, "code", 1, actor="tests")
        publish(connection, 2)
        assert aliases(connection, "code") == Aliases(champion=2, challenger=1, previous=0)


def test_stale_version_and_missing_things(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        with pytest.raises(PreconditionFailedError, match="has version 1, not 5"):
            publish(connection, 0, expected_version=5)
        with pytest.raises(NotFoundError, match="no revision 'code/9'"):
            publish(connection, 9)
        with pytest.raises(NotFoundError, match="no publication 'code/9'"):
            publications.get_publication(connection, "code", 9)
        with pytest.raises(NotFoundError, match="no drafter 'none'"):
            publications.current_publication(connection, "none")
        assert publications.publication_numbers(connection) == {"code": 1}


def test_failure_of_the_document_leaves_nothing(database: Database) -> None:
    registered(database)

    def broken(*_: Any) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), database.write() as connection:
        publish(connection, 0, document=broken)
    with pytest.raises(InvalidInputError, match="reason"), database.write() as connection:
        publish(connection, 0, reason="a\0b")
    with database.read() as connection:
        assert state_of(connection, "code").drafter.version == 1
        assert publications.current_publication(connection, "code").number == 1
        assert [row.action for row in list_audit(connection)] == ["register"]


@pytest.mark.parametrize("change", ["update", "delete"])
def test_database_refuses_changed_publications(database: Database, change: str) -> None:
    registered(database)
    table = tables.publications
    statement = table.update().values(document=b"x") if change == "update" else table.delete()
    with pytest.raises(StoreError, match="publications are immutable"):
        database.run(lambda connection: connection.execute(statement))


def test_one_of_two_threads_wins(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        add(connection, 1.5, 2, 3)
    both = threading.Barrier(2)

    def attempt(_: int) -> bool:
        with database.read() as connection:
            version = state_of(connection, "code").drafter.version
        both.wait(30)
        try:
            database.run(lambda connection: publish(connection, 1, expected_version=version))
        except PreconditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(attempt, range(2))) == [False, True]
    with database.read() as connection:
        assert publications.publication_numbers(connection) == {"code": 2}


@pytest.mark.slow
def test_processes_that_promote_at_once_never_both_win(database: Database) -> None:
    registered(database)
    said = run("promotes", database.url, count=4, rounds=5)
    won = [line["won"] for line in said if "won" in line]
    assert len(won) == len(set(won)) > 0  # no version was taken as a base twice
    numbers = sorted(line["publication"] for line in said if "won" in line)
    assert numbers == list(range(2, 2 + len(won)))
    with database.read() as connection:
        assert publications.publication_numbers(connection) == {"code": 1 + len(won)}


@only_postgresql
def test_postgresql_tells_listeners_at_the_commit(database: Database) -> None:
    registered(database)
    name = database.engine.url.database or ""
    with shared_server().connect(name) as listener:
        listener.execute(f"LISTEN {publications.CHANNEL}")
        with database.write() as connection:
            publish(connection, 0)
            assert list(listener.notifies(timeout=0.2)) == []
        (heard,) = listener.notifies(timeout=10, stop_after=1)
    assert (heard.channel, heard.payload) == ("dspark_calib_publications", "code")
