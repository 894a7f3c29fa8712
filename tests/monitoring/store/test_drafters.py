"""Registration happens once, whoever asks and however often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from calib.errors import InvalidInputError
from calib.statuses import ServingStatus
from monitoring.store import drafters
from monitoring.store.audit import list_audit
from monitoring.store.database import Database
from monitoring.store.drafter_rows import Aliases
from monitoring.store.errors import ConflictError, NotFoundError
from monitoring.store.publications import current_publication
from monitoring.store.revisions import aliases, get_revision
from monitoring.store.telemetry import counters
from tests.monitoring.store.store_fixtures import KEY, OTHER_KEY, document, registered


def test_registration_makes_identity_the_first_publication(database: Database) -> None:
    with database.write() as connection:
        drafter, created = drafters.register(
            connection, "code", KEY, actor="tests", document=document, valid_for_seconds=60.0
        )
    assert created
    assert (drafter.name, drafter.gamma, drafter.key, drafter.version) == ("code", 3, KEY, 1)
    with database.read() as connection:
        assert drafters.get(connection, "code") == drafter
        assert aliases(connection, "code") == Aliases(champion=0, challenger=None, previous=None)
        identity = get_revision(connection, "code", 0)
        published = current_publication(connection, "code")
        totals = counters(connection, "code")
    assert identity.calibration.status is ServingStatus.IDENTITY
    assert identity.calibration.temperatures == (1.0, 1.0, 1.0)
    assert identity.calibration.key == KEY
    assert (published.number, published.revision) == (1, 0)
    assert published.document == document(1, identity, drafter, published.published_at)
    assert published.valid_until == published.published_at + 60.0
    assert (totals.rows, totals.batches, totals.last_received_at) == (0, 0, None)


def test_same_key_again_changes_nothing(database: Database) -> None:
    first = registered(database)
    with database.write() as connection:
        again = drafters.register(connection, "code", KEY, actor="other", document=document)
        assert again == (first, False)
        assert current_publication(connection, "code").number == 1
        assert [row.action for row in list_audit(connection)] == ["register"]


def test_another_key_is_a_conflict(database: Database) -> None:
    registered(database)
    with (
        pytest.raises(ConflictError, match="'code': it has another calibration key"),
        database.write() as connection,
    ):
        drafters.register(connection, "code", OTHER_KEY, actor="tests", document=document)


def test_list_is_by_name(database: Database) -> None:
    for name in ("b", "a.1", "a"):
        registered(database, name)
    with database.read() as connection:
        names = [drafter.name for drafter in drafters.list_drafters(connection)]
    assert names == ["a", "a.1", "b"]


def test_unknown_and_impossible_names(database: Database) -> None:
    with database.read() as connection, pytest.raises(NotFoundError, match="no drafter 'code'"):
        drafters.get(connection, "code")
    with pytest.raises(InvalidInputError, match="drafter: got 'Code'"):
        registered(database, "Code")


def test_threads_that_register_at_once_agree(database: Database) -> None:
    def attempt(_: int) -> tuple[drafters.Drafter, bool]:
        return database.run(
            lambda connection: drafters.register(
                connection, "code", KEY, actor="tests", document=document
            )
        )

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(attempt, range(4)))
    assert sorted(created for _, created in found) == [False, False, False, True]
    assert len({drafter for drafter, _ in found}) == 1
