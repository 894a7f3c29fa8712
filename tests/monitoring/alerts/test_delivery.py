"""Delivery to real receivers that fail, hang and come back: nothing lost, nothing doubled."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from monitoring.alerts.delivery import AlertDelivery, DeliverySettings
from monitoring.alerts.receivers import Receiver
from monitoring.store import alert_outbox, events, silences
from monitoring.store.database import Database, current_time
from tests.monitoring.alerts.receiving_server import ReceivingServer, answer
from tests.monitoring.store.store_fixtures import registered

SECRET = "a secret of the tests"
KEY = "drift/code"
QUICK = DeliverySettings(
    base_url="https://calib.example.org",
    poll_seconds=0.02,
    first_pause=0.02,
    longest_pause=0.1,
    silence_seconds=0.05,
    grace_seconds=0.2,
)


@pytest.fixture(params=["sqlite"])
def dialect(request: pytest.FixtureRequest) -> str:
    """One database is enough here: the outbox's own tests take both."""
    name: str = request.param
    return name


@pytest.fixture
def server() -> Iterator[ReceivingServer]:
    with ReceivingServer() as started:
        yield started


def webhook(server: ReceivingServer, name: str = "pager", **more: Any) -> Receiver:
    return Receiver(name, "webhook", f"{server.url}/in", SECRET, **more)


def drift(database: Database, severity: events.Severity = "critical", key: str = KEY) -> None:
    details = {
        "position": 3,
        "evidence_log10": 7.25,
        "threshold_log10": 6.0,
        "mean_residual": -0.041,
        "since": "2026-11-29T12:00:00Z",
        "theta_loss": 0.018,
    }
    database.run(
        lambda c: events.open_event(
            c, "drift", severity, "code drifts", drafter="code", details=details, dedup_key=key
        )
    )


def resolve(database: Database, key: str = KEY) -> None:
    database.run(lambda c: events.resolve(c, key))


def totals(database: Database, name: str = "pager") -> alert_outbox.ReceiverTotals:
    with database.read() as connection:
        found = alert_outbox.receiver_totals(connection)
    none = alert_outbox.ReceiverTotals(name, 0, 0, 0, 0, 0, None, None, None)
    return next((one for one in found if one.receiver == name), none)


@contextmanager
def running(delivery: AlertDelivery) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=delivery.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20.0)
        assert not thread.is_alive()


def eventually(question: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(1500):
        if question():
            return
        pause.wait(0.02)
    raise AssertionError("it never came true")


def test_an_alarm_arrives_signed_and_says_what_helps(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    drift(database)
    assert AlertDelivery(database, [webhook(server)], QUICK).run_once() == 1
    (request,) = server.received
    body = request.json
    assert (body["drafter"], body["where"], body["severity"]) == ("code", "position 3", "critical")
    assert body["evidence"] == (
        "e-value 10^7.25 against calibration, alarm at 10^6; overconfident by 4.1 points"
    )
    assert body["since"] == "2026-11-29T12:00:00Z"
    assert body["cost"] == "about 1.8 % of throughput"
    assert body["command"] == "dspark-calib drift code"
    assert body["page"] == "https://calib.example.org/drafters/code"
    # By hand, as a receiver does it.
    identifier, timestamp = request.headers["webhook-id"], request.headers["webhook-timestamp"]
    signed = b".".join([identifier.encode(), timestamp.encode(), request.body])
    digest = hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(digest).decode()
    assert hmac.compare_digest(request.headers["webhook-signature"], expected)
    assert identifier == body["delivery"]
    assert abs(int(timestamp) - database.clock()) < 60


def test_failures_are_tried_again_under_one_id_until_it_arrives(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    drift(database)
    server.behaviours = [500, 429, server.hang, 302, 200]
    with running(AlertDelivery(database, [webhook(server, timeout_seconds=0.3)], QUICK)):
        eventually(lambda: totals(database).delivered == 1)
    assert len(server.received) == 5
    assert len({request.headers["webhook-id"] for request in server.received}) == 1
    assert len({request.body for request in server.received}) == 1
    found = totals(database)
    assert (found.deferred, found.delivered, found.waiting) == (4, 1, 0)
    assert AlertDelivery(database, [webhook(server)], QUICK).run_once() == 0


def test_a_repeat_is_no_second_message_but_worse_and_over_are(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    delivery = AlertDelivery(database, [webhook(server)], QUICK)
    for severity in ("warning", "warning", "critical", "critical"):
        drift(database, severity)  # type: ignore[arg-type]
        delivery.run_once()
    resolve(database)
    delivery.run_once()
    assert [request.json["notice"] for request in server.received] == [
        "opened",
        "escalated",
        "resolved",
    ]
    assert server.received[-1].json["title"] == "code drifts"
    assert server.received[-1].json["resolved_at"] is not None


def test_a_receiver_that_hangs_delays_no_other(database: Database) -> None:
    registered(database)
    with ReceivingServer() as slow, ReceivingServer() as quick:
        slow.always = slow.hang
        receivers = [webhook(slow, "slow", timeout_seconds=20.0), webhook(quick, "quick")]
        for number in range(6):
            drift(database, key=f"k{number}")
        with running(AlertDelivery(database, receivers, QUICK)):
            quick.wait_for(6)
            eventually(lambda: totals(database, "quick").delivered == 6)
            drift(database, key="one more")
            quick.wait_for(7)
            slow.wait_for(1)
        assert totals(database, "slow").waiting == 7


def test_a_worker_that_dies_or_restarts_neither_repeats_nor_loses(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    for number in range(3):
        drift(database, key=f"k{number}")
    server.behaviours = [200, server.hang, server.hang]
    with running(AlertDelivery(database, [webhook(server, timeout_seconds=20.0)], QUICK)):
        server.wait_for(3)  # one arrived, two hang, and then the worker is told to leave
        eventually(lambda: totals(database).delivered == 1)
    with running(AlertDelivery(database, [webhook(server)], QUICK)):
        eventually(lambda: totals(database).delivered == 3)
    ids = [request.headers["webhook-id"] for request in server.received]
    assert (len(ids), len(set(ids))) == (5, 3)  # the two that hung came again, as themselves


def test_a_silence_keeps_back_what_comes_and_tells_what_still_holds(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)

    def silence(connection: Any) -> silences.Silence:
        ends_at = current_time(connection) + 3600
        return silences.add_silence(
            connection, drafter="code", kind="drift", ends_at=ends_at, reason="x", actor="anna"
        )

    held = database.run(silence)
    delivery = AlertDelivery(database, [webhook(server)], QUICK)
    drift(database)
    drift(database, key="came and went")
    assert delivery.run_once() == 0
    resolve(database, "came and went")
    database.run(lambda c: silences.remove_silence(c, held.id, actor="anna"))
    with running(delivery):
        eventually(lambda: totals(database).silenced == 2 and totals(database).delivered == 1)
        database.run(silence)
        resolve(database)  # its beginning was told, so its end is too
        server.wait_for(2)
    assert [request.json["notice"] for request in server.received] == ["opened", "resolved"]
    assert {request.json["cause"] for request in server.received} == {KEY}


def test_what_never_arrives_is_given_up_in_the_end_and_counted(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    drift(database)
    resolve(database)
    server.always = 404
    settings = DeliverySettings(give_up_seconds=0.0)
    assert AlertDelivery(database, [webhook(server)], settings).run_once() == 1
    found = totals(database)
    # Nobody needs to hear of the end of what was never told.
    assert (found.abandoned, found.silenced, found.waiting) == (1, 1, 0)
    assert found.last_error == "status 404"


def test_pauses_double_up_to_the_longest_and_heed_the_receiver(database: Database) -> None:
    settings = DeliverySettings(first_pause=2.0, longest_pause=600.0)
    for jitter, share in ((lambda: 0.0, 0.5), (lambda: 1.0, 1.0)):
        delivery = AlertDelivery(database, [], settings, jitter=jitter)
        pauses = [delivery._pause(attempts, None) for attempts in (0, 1, 2, 8, 9, 1000)]
        assert pauses == [share * seconds for seconds in (2.0, 4.0, 8.0, 512.0, 600.0, 600.0)]
        assert delivery._pause(0, 90.0) == 90.0


def test_retry_after_is_heeded(database: Database, server: ReceivingServer) -> None:
    registered(database)
    drift(database)
    server.behaviours = [lambda handler: answer(handler, 503, Retry_After="120")]
    delivery = AlertDelivery(database, [webhook(server)], QUICK)
    assert delivery.run_once() == 1
    threading.Event().wait(0.15)  # longer than the longest pause of these settings
    assert delivery.run_once() == 0


def test_without_receivers_nothing_piles_up_for_later_ones(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    drift(database)
    AlertDelivery(database, [], QUICK).run_once()
    assert AlertDelivery(database, [webhook(server)], QUICK).run_once() == 0


def test_an_alertmanager_hears_again_what_holds(
    database: Database, server: ReceivingServer
) -> None:
    registered(database)
    seconds = [0.0]
    delivery = AlertDelivery(
        database,
        [Receiver("am", "alertmanager", server.url)],
        QUICK,
        monotonic=lambda: seconds[0],
    )
    drift(database)
    delivery.run_once()  # told, and once more with the round of what holds
    told = len(server.received)
    seconds[0] += 30.0
    delivery.run_once()
    assert len(server.received) == told
    seconds[0] += 31.0
    delivery.run_once()
    assert len(server.received) == told + 1
    first, again = server.received[0].json, server.received[-1].json
    assert first[0]["labels"] == again[0]["labels"]
    assert first[0]["startsAt"] == again[0]["startsAt"]
    resolve(database)
    delivery.run_once()
    seconds[0] += 61.0
    delivery.run_once()
    assert len(server.received) == told + 2  # its end, and then silence
    assert server.received[-1].json[0]["labels"] == first[0]["labels"]
