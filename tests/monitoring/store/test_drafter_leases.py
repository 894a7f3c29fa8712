"""One worker acts on a drafter at a time, and a late one commits nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, update

from calib.errors import InvalidInputError
from monitoring.store import drafter_leases, tables
from monitoring.store.database import Database
from monitoring.store.drafter_leases import DrafterLease
from monitoring.store.errors import LeaseLostError, NotFoundError
from monitoring.store.monitor_states import load, save
from tests.monitoring.store.store_fixtures import START, ManualClock, registered


def acquire(database: Database, owner: str, drafter: str = "code") -> DrafterLease | None:
    return database.run(lambda c: drafter_leases.acquire(c, database, drafter, owner))


def acquired(database: Database, owner: str, drafter: str = "code") -> DrafterLease:
    lease = acquire(database, owner, drafter)
    assert lease is not None
    return lease


def expire(database: Database) -> None:
    """Let every lease end, as if its owner had been silent."""
    ended = update(tables.drafter_leases).values(until=1.0)
    database.run(lambda connection: connection.execute(ended))


def check(database: Database, lease: DrafterLease) -> None:
    database.run(lambda connection: drafter_leases.check_fence(connection, database, lease))


def renew(database: Database, lease: DrafterLease, seconds: float = 30.0) -> DrafterLease:
    return database.run(lambda c: drafter_leases.renew(c, database, lease, seconds=seconds))


def release(database: Database, lease: DrafterLease) -> None:
    database.run(lambda connection: drafter_leases.release(connection, lease))


def test_life_of_a_lease(database: Database) -> None:
    registered(database)
    registered(database, "chat")
    lease = acquired(database, "a")
    assert (lease.drafter, lease.owner, lease.fencing) == ("code", "a", 1)
    assert acquire(database, "b") is None
    assert acquire(database, "a") is None  # a restarted owner cannot be told from itself
    assert acquired(database, "b", "chat").fencing == 1
    longer = renew(database, lease, 60.0)
    assert longer.until > lease.until + 25
    check(database, lease)  # the number counts, not what the owner knew of the end
    with database.read() as connection:
        assert drafter_leases.holder(connection, "code") == longer
    release(database, lease)
    with database.read() as connection:
        assert drafter_leases.holder(connection, "code") is None
    with pytest.raises(LeaseLostError, match="loop of code"):
        release(database, lease)
    assert acquired(database, "b").fencing == 2


@pytest.mark.slow
def test_ended_lease_is_taken_over_and_its_owner_refused(database: Database) -> None:
    registered(database)
    old = acquired(database, "a")
    expire(database)
    for late in (check, renew, release):
        with pytest.raises(LeaseLostError, match="loop of code"):
            late(database, old)  # nobody has it, yet it is not revived
    new = acquired(database, "a")
    assert new.fencing == 2
    for late in (check, renew, release):
        with pytest.raises(LeaseLostError, match="loop of code"):
            late(database, old)
    check(database, new)


def test_r73_late_owner_takes_its_work_with_it(database: Database) -> None:
    registered(database)
    old = acquired(database, "a")
    expire(database)
    acquired(database, "b")

    def commit(connection: Connection) -> None:
        save(connection, "code", consumed_through=9, state=b"late", document=b"{}")
        drafter_leases.check_fence(connection, database, old)

    with pytest.raises(LeaseLostError):
        database.run(commit)
    with database.read() as connection:
        assert load(connection, "code") is None


def test_of_many_that_ask_at_once_one_gets_it(database: Database) -> None:
    registered(database)
    together = threading.Barrier(6)

    def ask(number: int) -> DrafterLease | None:
        together.wait(10.0)
        return acquire(database, f"worker-{number}")

    with ThreadPoolExecutor(6) as pool:
        for expected in (1, 2):  # the first lease of a drafter, and a later one
            found = [lease for lease in pool.map(ask, range(6)) if lease is not None]
            assert [lease.fencing for lease in found] == [expected]
            expire(database)


def test_impossible_leases(database: Database) -> None:
    registered(database)
    with pytest.raises(NotFoundError, match="no drafter 'none'"):
        acquire(database, "a", "none")
    with pytest.raises(InvalidInputError, match="owner"):
        acquire(database, "")


def test_clock_set_back_does_not_revive_a_lease(sqlite_url: str) -> None:
    clock = ManualClock()
    database = Database.open(sqlite_url, clock=clock)
    registered(database)
    lease = acquired(database, "a")
    clock.seconds = START + 31
    with pytest.raises(LeaseLostError):
        check(database, lease)
    assert acquired(database, "b").fencing == 2
    clock.seconds = START + 1
    with pytest.raises(LeaseLostError):
        check(database, lease)
    database.close()
