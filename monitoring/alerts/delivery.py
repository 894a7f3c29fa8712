"""Delivering alerts: a loop of its own beside the jobs, so that neither waits for the other.

Every receiver is served by itself: one that hangs delays nobody else. What fails is tried again
with growing, jittered pauses until it arrived; after days it is given up, and counted. A stop lets
attempts under way end for a moment, then gives them back: the next worker makes them again, under
the same delivery id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection

from monitoring.alerts.alertmanager import alertmanager_request
from monitoring.alerts.messages import AlertMessage, alert_message
from monitoring.alerts.receivers import Receiver
from monitoring.alerts.slack import slack_request
from monitoring.alerts.transport import AlertRequest, Answer, open_client, post
from monitoring.alerts.webhook import webhook_request
from monitoring.store import alert_outbox
from monitoring.store.alert_outbox import Delivery
from monitoring.store.database import Database, current_time
from monitoring.store.errors import LeaseLostError, StoreError
from monitoring.store.silences import silenced_until

if TYPE_CHECKING:
    import httpx

__all__ = ["AlertDelivery", "DeliverySettings", "request_for"]

_log = logging.getLogger(__name__)

_MOST_REPEATED: Final = 500  # open events of one receiver; an Alertmanager groups them anyway
_LONGEST_STORE_PAUSE: Final = 30.0


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How deliveries go about it.

    Attributes:
        base_url: address of the service in links.
        poll_seconds: pause between two looks into the outbox.
        at_once: attempts at one receiver at the same time.
        first_pause: seconds before the second attempt; doubled for each further one.
        longest_pause: seconds between two attempts at most.
        give_up_seconds: age from which a delivery is given up.
        silence_seconds: pause between two looks at a delivery that a silence keeps back.
        repeat_seconds: how often an Alertmanager hears again what holds.
        grace_seconds: how long attempts under way may go on after the stop.
        keep_seconds: how long deliveries of ended events are kept.
    """

    base_url: str = "http://127.0.0.1:8765"
    poll_seconds: float = 1.0
    at_once: int = 4
    first_pause: float = 2.0
    longest_pause: float = 600.0
    give_up_seconds: float = 3 * 24 * 3600.0
    silence_seconds: float = 30.0
    repeat_seconds: float = 60.0
    grace_seconds: float = 2.0
    keep_seconds: float = 30 * 24 * 3600.0

    @property
    def holds_seconds(self) -> float:
        """How long an Alertmanager keeps an alert that it does not hear of again."""
        return 5.0 * self.repeat_seconds


class AlertDelivery:
    """Delivers what the outbox holds; several may work on one database.

    Args:
        database: of this process; migrated.
        receivers: with different names.
        settings: defaults when None.
        monotonic: seconds from any origin.
        jitter: a number from 0 to 1 for each pause.
    """

    def __init__(
        self,
        database: Database,
        receivers: Sequence[Receiver],
        settings: DeliverySettings | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._database = database
        self._receivers = {receiver.name: receiver for receiver in receivers}
        self._settings = settings or DeliverySettings()
        self._monotonic = monotonic
        self._jitter = jitter
        self._repeat_at = dict.fromkeys(self._receivers, monotonic())
        self._forget_at = monotonic()
        self._clients: dict[str, httpx.AsyncClient] = {}

    def run(self, stop: threading.Event) -> None:
        """Deliver until ``stop`` is set; the database and receivers may come and go."""
        asyncio.run(self._run(stop))

    def run_once(self) -> int:
        """Attempt everything that is due now; returns how many attempts were made.

        Raises:
            StoreError: the database failed.
        """
        return asyncio.run(self._round())

    # On the loop ---------------------------------------------------------------------------------

    async def _run(self, stop: threading.Event) -> None:
        failures = 0
        busy: dict[str, asyncio.Task[int]] = {}
        async with AsyncExitStack() as clients:
            clients.push_async_callback(self._close)
            while not stop.is_set():
                try:
                    due = await asyncio.to_thread(self._look)
                    failures = 0
                except StoreError as error:
                    failures += 1
                    due = set()
                    _log.warning("alerts wait for the database: %s", error)
                for name in due - busy.keys():
                    busy[name] = asyncio.create_task(self._serve(name))
                pause = self._settings.poll_seconds * 2.0 ** min(failures, 5)
                await asyncio.to_thread(stop.wait, min(pause, _LONGEST_STORE_PAUSE))
                busy = {name: task for name, task in busy.items() if not _ended(task)}
            await _finish(list(busy.values()), self._settings.grace_seconds)

    async def _round(self) -> int:
        async with AsyncExitStack() as clients:
            clients.push_async_callback(self._close)
            due = await asyncio.to_thread(self._look)
            return sum(await asyncio.gather(*map(self._serve, sorted(due))))

    async def _serve(self, name: str) -> int:
        """Attempt what one receiver has due; returns how many attempts that were."""
        receiver, attempts = self._receivers[name], 0
        while leased := await asyncio.to_thread(self._lease, receiver):
            attempts += len(leased)
            await asyncio.gather(*(self._attempt(receiver, delivery) for delivery in leased))
        if receiver.kind == "alertmanager" and self._monotonic() >= self._repeat_at[name]:
            await self._repeat(receiver)
        return attempts

    async def _attempt(self, receiver: Receiver, delivery: Delivery) -> None:
        message = self._message(delivery)
        now = self._database.clock()
        request = request_for(receiver, message, delivery.delivery, now, self._settings)
        try:
            answer = await self._post(receiver, request)
        except asyncio.CancelledError:
            self._write(lambda connection: alert_outbox.release(connection, delivery))
            raise
        await asyncio.to_thread(self._conclude, delivery, answer)

    async def _repeat(self, receiver: Receiver) -> None:
        """Tell an Alertmanager what still holds; a failure is mended by the next time."""
        self._repeat_at[receiver.name] = self._monotonic() + self._settings.repeat_seconds
        holding = await asyncio.to_thread(self._holding, receiver)
        if not holding:
            return
        now, holds = self._database.clock(), self._settings.holds_seconds
        answer = await self._post(
            receiver, alertmanager_request(receiver, holding, now=now, holds_seconds=holds)
        )
        if not answer.ok:
            _log.warning("alerts not repeated to %s: %s", receiver.name, answer.error)

    async def _post(self, receiver: Receiver, request: AlertRequest) -> Answer:
        client = self._clients.get(receiver.name)
        if client is None:
            client = self._clients[receiver.name] = open_client(receiver)
        seconds, now = receiver.timeout_seconds, self._database.clock()
        return await post(client, request, seconds=seconds, now=now)

    async def _close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()

    # In other threads ----------------------------------------------------------------------------

    def _look(self) -> set[str]:
        """Spread what is new, and find who has something due."""
        with self._database.read() as connection:
            fresh, due = alert_outbox.due_receivers(connection, list(self._receivers))
        if fresh:
            recipients = [receiver.recipient for receiver in self._receivers.values()]
            while self._database.run(lambda c: alert_outbox.spread(c, recipients)):
                pass
            with self._database.read() as connection:
                _, due = alert_outbox.due_receivers(connection, list(self._receivers))
        now = self._monotonic()
        if now >= self._forget_at:
            self._forget_at = now + 3600.0
            while self._database.run(self._forget):
                pass
        kinds = {name for name, one in self._receivers.items() if one.kind == "alertmanager"}
        return due | {name for name in kinds if now >= self._repeat_at[name]}

    def _forget(self, connection: Connection) -> int:
        before = current_time(connection) - self._settings.keep_seconds
        return alert_outbox.forget_finished(connection, before=before)

    def _lease(self, receiver: Receiver) -> list[Delivery]:
        """Deliveries to attempt now; those that a silence concerns are dealt with here."""
        # Long enough for the attempt and for writing down what became of it.
        seconds = receiver.timeout_seconds + 15.0

        def work(connection: Connection) -> list[Delivery]:
            leased = alert_outbox.lease_due(
                connection, receiver.name, seconds=seconds, limit=self._settings.at_once
            )
            return [one for one in leased if self._is_wanted(connection, one)]

        return self._database.run(work)

    def _is_wanted(self, connection: Connection, delivery: Delivery) -> bool:
        """Whether to attempt it; otherwise it is held back, or ended as silenced."""
        if delivery.notice == "resolved":
            # The end is told to whoever heard of the beginning, also during a silence.
            wanted = alert_outbox.was_told(connection, delivery.receiver, delivery.event)
        elif delivery.held and not alert_outbox.event_holds(connection, delivery.event):
            wanted = False  # it came and went while nobody was to be told
        else:
            kind, drafter = delivery.message["kind"], delivery.message["drafter"]
            until = silenced_until(connection, drafter, kind)
            if until is None:
                return True
            if delivery.notice != "noticed":
                pause = min(self._settings.silence_seconds, until - current_time(connection))
                alert_outbox.hold(connection, delivery, seconds=max(0.0, pause))
                return False
            wanted = False
        if not wanted:
            alert_outbox.settle(connection, delivery, "silenced")
        return wanted

    def _conclude(self, delivery: Delivery, answer: Answer) -> None:
        """Write down what became of an attempt."""

        def work(connection: Connection) -> None:
            if answer.ok:
                alert_outbox.settle(connection, delivery, "delivered")
                return
            error = answer.error or "refused"
            age = current_time(connection) - delivery.created_at
            if age >= self._settings.give_up_seconds:
                alert_outbox.settle(connection, delivery, "abandoned", error)
                return
            pause = self._pause(delivery.attempts, answer.retry_seconds)
            alert_outbox.postpone(connection, delivery, seconds=pause, error=error)

        if not answer.ok:
            _log.warning("alert not delivered to %s: %s", delivery.receiver, answer.error)
        self._write(work)

    def _pause(self, attempts: int, retry_seconds: float | None) -> float:
        grown = self._settings.first_pause * 2.0 ** min(attempts, 30)
        pause = min(grown, self._settings.longest_pause)
        return max(pause * (0.5 + 0.5 * self._jitter()), retry_seconds or 0.0)

    def _write(self, work: Callable[[Connection], None]) -> None:
        try:
            self._database.run(work)
        except LeaseLostError as error:
            _log.warning("another worker has the alert: %s", error)
        except StoreError as error:
            # Its lease ends by itself, and it is told again under the same id.
            _log.warning("what became of an alert is not written down: %s", error)

    def _holding(self, receiver: Receiver) -> list[AlertMessage]:
        with self._database.read() as connection:
            found = alert_outbox.open_at_receiver(connection, receiver.name, limit=_MOST_REPEATED)
            return [
                self._message(delivery)
                for delivery in found
                if silenced_until(connection, delivery.message["drafter"], delivery.message["kind"])
                is None
            ]

    def _message(self, delivery: Delivery) -> AlertMessage:
        base_url = self._settings.base_url
        return alert_message(delivery.notice, delivery.message, base_url=base_url)


def request_for(
    receiver: Receiver,
    message: AlertMessage,
    delivery: str,
    now: float,
    settings: DeliverySettings,
) -> AlertRequest:
    """The request that tells ``receiver`` this message, in its own form.

    Args:
        receiver: whom.
        message: what.
        delivery: id that stays the same over attempts.
        now: seconds since the epoch.
        settings: how long an Alertmanager keeps it.
    """
    if receiver.kind == "webhook":
        return webhook_request(receiver, message, delivery=delivery, now=now)
    if receiver.kind == "slack":
        return slack_request(receiver, message)
    holds = settings.holds_seconds
    return alertmanager_request(receiver, [message], now=now, holds_seconds=holds)


def _ended(task: asyncio.Task[int]) -> bool:
    """Whether the task is over; what it failed with is logged."""
    if not task.done():
        return False
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("alerts of a receiver stopped for now: %s", error)
    return True


async def _finish(tasks: Sequence[asyncio.Task[int]], seconds: float) -> None:
    """Let tasks end for this time, then cancel them."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
