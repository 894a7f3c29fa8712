"""Entries exist exactly when what they mirror does, and leave one by one, in order, once."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from calib.calibration import Calibration
from calib.errors import InvalidInputError
from monitoring.store import tracking_outbox as outbox
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError
from monitoring.store.jobs import enqueue, finish, lease_next
from monitoring.store.reports import put_report
from monitoring.store.revisions import add_revision, set_challenger
from monitoring.store.tracking_outbox import Entry
from tests.monitoring.store.store_fixtures import ManualClock, register


def entries(database: Database, **chosen: Any) -> list[Entry]:
    with database.read() as connection:
        return outbox.list_entries(connection, **chosen)


def told(database: Database) -> list[tuple[str, Any]]:
    return [(entry.kind, entry.content) for entry in entries(database)]


def claimed(database: Database, owner: str = "a", seconds: float = 60.0) -> Entry | None:
    return database.run(lambda c: outbox.claim_next(c, database, owner, seconds=seconds))


def taken(database: Database, owner: str = "a", seconds: float = 60.0) -> Entry:
    entry = claimed(database, owner, seconds)
    assert entry is not None
    return entry


def delivered(database: Database, entry: Entry) -> None:
    database.run(lambda c: outbox.deliver(c, database, entry))


def totals(database: Database) -> outbox.TrackingTotals:
    with database.read() as connection:
        return outbox.totals(connection)


def test_everything_that_is_mirrored_writes_its_entry(database: Database) -> None:
    def work(connection: Connection) -> None:
        register(connection)
        two = Calibration.from_temperatures([2.0, 2.0, 2.0], gamma=3)
        add_revision(connection, "code", two, provenance={}, actor="tests")
        set_challenger(connection, "code", 1, actor="tests")
        put_report(
            connection,
            "code",
            "evaluation",
            b"{}",
            revision=0,
            through_batch=None,
            created_at=5.0,
            told={"metrics": {"rows": 3}},
        )
        enqueue(connection, "code", "recalibration", {"rows": 5}, actor="tests")

    database.run(work)
    job = database.run(lambda c: lease_next(c, database, "worker"))
    assert job is not None
    result = {"refusal": "no_rows", "evidence": {"fit": [1], "held_out": {"champion": 0}}}
    database.run(lambda c: finish(c, job, "refused", result))
    found = told(database)
    assert [kind for kind, _ in found] == [
        "revision",
        "publication",
        "revision",
        "aliases",
        "report",
        "job",
    ]
    assert found[0][1] == {"revision": 0}
    assert found[1][1]["publication"] == 1
    assert found[3][1] == {"aliases": {"champion": 0, "challenger": 1, "previous": None}}
    assert found[4][1] == {
        "metrics": {"rows": 3},
        "report": 1,
        "revision": 0,
        "created_at": 5.0,
    }
    last = found[5][1]
    assert (last["job"], last["status"], last["options"]) == (job.id, "refused", {"rows": 5})
    # The fit's own evidence stays in the job: entries are small.
    assert last["result"] == {"refusal": "no_rows", "held_out": {"champion": 0}}


def test_a_transaction_that_fails_leaves_no_entry(database: Database) -> None:
    def work(connection: Connection) -> None:
        register(connection)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        database.run(work)
    assert told(database) == []


def test_each_drafter_is_told_in_order_and_by_one_process(database: Database) -> None:
    database.run(lambda c: [register(c, name) for name in ("code", "chat")])
    first, second = taken(database, "a"), taken(database, "b")
    assert (first.drafter, first.kind, second.drafter, second.kind) == (
        "code",
        "revision",
        "chat",
        "revision",
    )
    # Both drafters have somebody; what stands behind waits although it is not leased itself.
    assert claimed(database, "c") is None
    delivered(database, first)
    third = taken(database, "c")
    assert (third.drafter, third.kind) == ("code", "publication")


def test_a_lease_ends_and_its_owner_cannot_deliver_any_more(sqlite_url: str) -> None:
    clock = ManualClock()
    database = Database.open(sqlite_url, clock=clock)
    database.run(register)
    slow = taken(database, "slow", seconds=30.0)
    clock.seconds += 31.0
    other = taken(database, "other")
    assert (other.id, other.attempts) == (slow.id, 2)
    for late in (outbox.deliver, outbox.give_back):
        with pytest.raises(LeaseLostError):
            database.run(lambda c, late=late: late(c, database, slow))
    delivered(database, other)
    assert totals(database).delivered == 1
    database.close()


def test_deferred_counts_each_entry_once_and_a_delivery_ends_the_outage(
    database: Database,
) -> None:
    database.run(register)
    for expected in (2, 2):
        entry = taken(database)
        found = database.run(lambda c, entry=entry: outbox.put_off(c, database, entry))
        assert (found.deferred, found.waiting, found.delivered) == (expected, 2, 0)
        assert found.away_since is not None
    database.run(lambda c: register(c, "chat"))
    assert database.run(lambda c: outbox.put_off(c, database, None)).deferred == 4
    delivered(database, taken(database))
    after = totals(database)
    assert (after.deferred, after.delivered, after.waiting, after.away_since) == (4, 1, 3, None)


def test_what_can_never_be_told_is_kept_and_the_next_one_goes_on(database: Database) -> None:
    database.run(register)
    entry = taken(database)
    database.run(lambda c: outbox.give_up(c, database, entry, "no\0 such thing"))
    (kept,) = entries(database, status="failed")
    assert (kept.id, kept.error) == (entry.id, "no such thing")
    assert taken(database).kind == "publication"
    assert (totals(database).failed, totals(database).waiting) == (1, 1)


def test_switched_off_nothing_piles_up_and_on_again_all_revisions_are_entered(
    database: Database,
) -> None:
    assert database.run(lambda c: outbox.set_enabled(c, False))
    assert not database.run(lambda c: outbox.set_enabled(c, False))
    database.run(register)
    assert told(database) == []
    assert database.run(lambda c: outbox.set_enabled(c, True))
    kinds = [kind for kind, _ in told(database)]
    assert kinds == ["revision", "publication"]
    assert told(database)[1][1]["aliases"]["champion"] == 0


def test_only_known_kinds_are_written(database: Database) -> None:
    database.run(register)
    with pytest.raises(InvalidInputError, match="kind"):
        database.run(lambda c: outbox.record(c, "code", "gossip", {}))  # type: ignore[arg-type]
