"""Notices come with their events, deliveries reach every receiver once and in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, select

from monitoring.store import alert_outbox, events, tables
from monitoring.store.alert_outbox import Delivery, Recipient
from monitoring.store.database import Database, current_time
from monitoring.store.errors import LeaseLostError
from tests.monitoring.store.store_fixtures import registered

PAGER = Recipient("pager", "warning")
CHAT = Recipient("chat", "info")
KEY = "drift/code"


def report(
    connection: Connection, severity: events.Severity = "warning", key: str | None = KEY
) -> events.Event:
    return events.open_event(
        connection, "drift", severity, "drift of code", details={"position": 3}, dedup_key=key
    )


def notices(database: Database) -> list[tuple[str, str]]:
    columns = tables.alert_notices.c
    with database.read() as connection:
        query = select(columns.notice, columns.severity).order_by(columns.id)
        return [tuple(row) for row in connection.execute(query)]


def lease(database: Database, receiver: str = "pager", seconds: float = 30.0) -> list[Delivery]:
    return database.run(lambda c: alert_outbox.lease_due(c, receiver, seconds=seconds, limit=10))


def test_an_event_and_its_notice_are_one_transaction(database: Database) -> None:

    def fails(connection: Connection) -> None:
        report(connection)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        database.run(fails)
    assert notices(database) == []
    with database.write() as connection:
        event = report(connection)
    assert notices(database) == [("opened", "warning")]
    with database.write() as connection:
        alert_outbox.spread(connection, [PAGER])
    (delivery,) = lease(database)
    assert (delivery.event, delivery.notice, delivery.attempts) == (event.id, "opened", 0)
    assert delivery.message["details"] == {"position": 3}


def test_only_what_is_news_leaves_a_notice(database: Database) -> None:
    with database.write() as connection:
        for severity in ("warning", "warning", "info", "critical", "warning", "critical"):
            report(connection, severity)  # type: ignore[arg-type]
        assert events.resolve(connection, KEY) is not None
        assert events.resolve(connection, KEY) is None
        report(connection, "info", key=None)
        report(connection, "info")
    assert notices(database) == [
        ("opened", "warning"),
        ("escalated", "critical"),
        ("resolved", "critical"),
        ("noticed", "info"),
        ("opened", "info"),
    ]


def test_whoever_was_told_hears_of_an_end_by_hand_too_and_once(database: Database) -> None:
    with database.write() as connection:
        event = report(connection)
        assert events.resolve_event(connection, event.id).state == "resolved"
        assert events.resolve_event(connection, event.id).state == "resolved"
    assert notices(database) == [("opened", "warning"), ("resolved", "warning")]


def test_receivers_get_what_is_severe_enough_and_its_end(database: Database) -> None:
    with database.write() as connection:
        report(connection, "info", "a")
        report(connection, "warning", "b")
        events.resolve(connection, "a")
        events.resolve(connection, "b")
        assert alert_outbox.spread(connection, [PAGER, CHAT]) == 4
        assert alert_outbox.spread(connection, [PAGER, CHAT]) == 0
    with database.read() as connection:
        columns = tables.alert_deliveries.c
        query = select(columns.receiver, tables.alert_notices.c.notice).join(tables.alert_notices)
        found = sorted(tuple(row) for row in connection.execute(query))
    assert found == [
        ("chat", "opened"),
        ("chat", "opened"),
        ("chat", "resolved"),
        ("chat", "resolved"),
        ("pager", "opened"),
        ("pager", "resolved"),
    ]


def test_workers_that_spread_and_lease_at_once_double_nothing(database: Database) -> None:
    with database.write() as connection:
        for number in range(12):
            report(connection, key=f"k{number}")

    def work(_: int) -> list[str]:
        database.run(lambda c: alert_outbox.spread(c, [PAGER]))
        return [one.delivery for one in lease(database)] + [one.delivery for one in lease(database)]

    with ThreadPoolExecutor(4) as pool:
        found = [delivery for ids in pool.map(work, range(4)) for delivery in ids]
    found += [one.delivery for one in lease(database)]
    assert len(found) == len(set(found)) == 12


def test_deliveries_of_one_event_come_in_order(database: Database) -> None:
    with database.write() as connection:
        report(connection)
        report(connection, "critical")
        events.resolve(connection, KEY)
        alert_outbox.spread(connection, [PAGER])
    seen = []
    while leased := lease(database):
        assert len(leased) == 1
        seen.append(leased[0].notice)
        database.run(lambda c, one=leased[0]: alert_outbox.settle(c, one, "delivered"))  # type: ignore[misc]
    assert seen == ["opened", "escalated", "resolved"]


def test_a_lease_that_ran_out_is_taken_over_and_fenced(database: Database) -> None:
    with database.write() as connection:
        report(connection)
        alert_outbox.spread(connection, [PAGER])
    (lost,) = lease(database, seconds=0.0)
    (held,) = lease(database)
    assert held.delivery == lost.delivery
    assert lease(database) == []
    with pytest.raises(LeaseLostError):
        database.run(lambda c: alert_outbox.settle(c, lost, "delivered"))
    database.run(lambda c: alert_outbox.settle(c, held, "delivered"))
    with database.read() as connection:
        (totals,) = alert_outbox.receiver_totals(connection)
    assert (totals.delivered, totals.waiting) == (1, 0)


def test_a_failed_attempt_is_deferred_and_counted_not_dropped(database: Database) -> None:
    with database.write() as connection:
        report(connection)
        alert_outbox.spread(connection, [PAGER])
    (first,) = lease(database)
    database.run(lambda c: alert_outbox.postpone(c, first, seconds=60.0, error="status 500"))
    assert lease(database) == []  # not before its time
    with database.read() as connection:
        (totals,) = alert_outbox.receiver_totals(connection)
        assert alert_outbox.due_receivers(connection, ["pager"]) == (False, set())
    assert (totals.deferred, totals.delivered, totals.waiting) == (1, 0, 1)
    assert totals.last_error == "status 500"


def test_what_a_receiver_holds_open_is_known(database: Database) -> None:
    with database.write() as connection:
        report(connection)
        report(connection, "warning", "other")
        alert_outbox.spread(connection, [PAGER])
    for one in lease(database):
        database.run(lambda c, one=one: alert_outbox.settle(c, one, "delivered"))  # type: ignore[misc]
    with database.write() as connection:
        events.resolve(connection, "other")
        (held,) = alert_outbox.open_at_receiver(connection, "pager", limit=10)
    assert held.message["dedup_key"] == KEY


def test_only_what_is_over_and_told_is_forgotten(database: Database) -> None:
    registered(database)
    with database.write() as connection:
        report(connection)  # still holds
        report(connection, key="over")
        events.resolve(connection, "over")
        alert_outbox.spread(connection, [PAGER])
        later = current_time(connection) + 10.0
        assert alert_outbox.forget_finished(connection, before=later) == 0  # still to be told
    while leased := lease(database):
        for one in leased:
            database.run(lambda c, one=one: alert_outbox.settle(c, one, "delivered"))  # type: ignore[misc]
    with database.write() as connection:
        assert alert_outbox.forget_finished(connection, before=later) == 2
    assert notices(database) == [("opened", "warning")]
