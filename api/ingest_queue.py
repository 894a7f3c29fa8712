"""Group commit: one thread writes, and everything that waits goes into one transaction.

A durable commit costs one flush of the disk whatever its size, so while one is under way the next
group gathers. A caller hears back when its batch is durable. What was handed over is committed once
even if the caller has gone; what cannot be written comes back as the store's typed error, and the
thread goes on with the next group.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from api.idempotency import RunningRequests
from api.pending_bytes import PendingBytes, QueueFullError, Reservation
from api.problems import ProblemError
from monitoring.store.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from monitoring.store.telemetry import BatchToStore, count_rejects, store_batches

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from monitoring.store.database import Database

__all__ = ["IngestQueue", "QueueFullError"]

T = TypeVar("T")

GROUP_BYTES: Final = 16 * 2**20  # other writers wait no longer than it takes to write this much
GROUP_BATCHES: Final = 1000
_ATTEMPTS: Final = 2  # each waits for locks by itself; senders hear within seconds
# Parsing holds the interpreter's lock most of the time: two threads at once take a tenth more
# processor time for the same rows, hold two batches as objects, and are hardly faster. The second
# is for large bodies, which may take seconds, so that small ones need not wait for them.
_LARGE_BYTES: Final = 4 * 2**20
_LONGEST_RETRY: Final = 30
# Outages concern the database, not a batch: trying the batches one by one would only take longer.
_OUTAGES: Final = (StoreBusyError, StoreUnavailableError, StoreFullError)


@dataclass(slots=True, eq=False)
class _Item:
    """Something to write, and who waits for it."""

    drafter: str
    batch: BatchToStore | None
    rejected: int
    duplicates: int
    future: asyncio.Future[int]
    size: int
    put_at: float = field(default_factory=time.monotonic)


Outcome = int | Exception


class IngestQueue:
    """Takes validated batches and stores them durably, in groups.

    Its methods are called on the event loop; the thread starts with the first batch.

    Args:
        database: where batches go.
        max_pending_bytes: most bytes of batches in memory, from arrival to commit.
        max_wait_ms: how long the writer waits for more batches before a commit, when the group
            before held more than one; a lone sender never waits.
    """

    def __init__(
        self, database: Database, *, max_pending_bytes: int, max_wait_ms: float = 5.0
    ) -> None:
        self._database = database
        self._max_wait = max_wait_ms / 1000
        self._items: deque[_Item] = deque()
        self._writing: list[_Item] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._parsers = {
            large: ThreadPoolExecutor(1, thread_name_prefix="ingest-parser")
            for large in (False, True)
        }
        self._tasks: set[asyncio.Future[Any]] = set()
        self._log = structlog.get_logger("api.ingest")
        self._bytes_per_second = 0.0
        self._failing = False
        self.pending = PendingBytes(max_pending_bytes, self._retry_seconds)
        """Bytes of batches in memory."""
        self.running = RunningRequests()
        """Idempotency keys whose requests have not ended."""

    async def prepare(self, work: Callable[..., T], *arguments: Any, size: int = 0) -> T:
        """What ``work`` returns, done in one of the queue's parser threads.

        Args:
            work: what to do.
            *arguments: for ``work``.
            size: about how many bytes it reads.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        parser = self._parsers[size >= _LARGE_BYTES]
        return await loop.run_in_executor(parser, work, *arguments)

    async def see_through(self, work: Coroutine[Any, Any, T], duties: ExitStack) -> T:
        """What ``work`` returns; if the caller goes away, it is done all the same.

        ``duties`` end with it.
        """

        async def whole() -> T:
            with duties:
                return await work

        task = asyncio.ensure_future(whole())
        self._tasks.add(task)  # the loop itself would let it be collected
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_looked_at)
        return await asyncio.shield(task)

    async def submit(
        self,
        batch: BatchToStore,
        *,
        rejected: int = 0,
        duplicates: int = 0,
        reservation: Reservation | None = None,
    ) -> int:
        """Id of the batch, once it is durable.

        Raises:
            QueueFullError: too much waits already.
            ProblemError: 503, the service shuts down.
            StoreError: it was not stored; typed by what went wrong.
        """
        return await asyncio.shield(
            self.put(batch, rejected=rejected, duplicates=duplicates, reservation=reservation)
        )

    def put(
        self,
        batch: BatchToStore,
        *,
        rejected: int = 0,
        duplicates: int = 0,
        reservation: Reservation | None = None,
    ) -> asyncio.Future[int]:
        """Hand a batch over: it will be committed whatever becomes of the caller.

        Args:
            batch: what to store.
            rejected: rows of its request that were refused, for the counters.
            duplicates: rows of its request that were dropped, for the counters.
            reservation: bytes reserved for the request, given on to the queue; None reserves.

        Returns:
            The id of the batch, or the error; do not cancel it.

        Raises:
            QueueFullError: too much waits already.
            ProblemError: 503, the service shuts down.
        """
        self._check_open()
        size = len(batch.payload) + len(batch.answer)
        held = self.pending.reserve() if reservation is None else reservation.handed_over()
        held.shrink(size)
        try:
            held.grow(size - held.size)
            return self._enqueue(batch.drafter, batch, rejected, duplicates, held)
        except BaseException:
            held.release()
            raise

    async def count_rejects(self, drafter: str, rejected: int, duplicates: int = 0) -> None:
        """Add rows of a request of which nothing is stored to the counters, durably.

        Raises:
            ProblemError: 503, the service shuts down.
            StoreError: not counted; typed by what went wrong.
        """
        self._check_open()
        held = self.pending.reserve()
        await asyncio.shield(self._enqueue(drafter, None, rejected, duplicates, held))

    async def close(self, timeout: float = 10.0) -> bool:
        """Take no more, commit what was handed over, and end the thread.

        Returns:
            Whether everything was written within ``timeout`` seconds.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, timeout)
        for parser in self._parsers.values():
            parser.shutdown(wait=False, cancel_futures=True)
        await asyncio.sleep(0)  # futures resolved by the thread's last act
        with self._changed:
            left = [*self._writing, *self._items]
            self._items.clear()
        for item in left:
            if not item.future.done():
                item.future.set_exception(_shutting_down())
        return not left

    def _check_open(self) -> None:
        if self._closing:
            raise _shutting_down()

    def _enqueue(
        self,
        drafter: str,
        batch: BatchToStore | None,
        rejected: int,
        duplicates: int,
        held: Reservation,
    ) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda _: held.release())
        future.add_done_callback(_looked_at)
        item = _Item(drafter, batch, rejected, duplicates, future, held.size)
        with self._changed:
            self._items.append(item)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write, name="ingest-writer", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()
        return future

    def _retry_seconds(self) -> int:
        """When a sender that was turned away may find room."""
        if self._failing:
            return 5
        rate = self._bytes_per_second
        waiting = sum(item.size for item in list(self._items))
        return min(_LONGEST_RETRY, 1 + int(waiting / rate)) if rate else 1

    # In the writing thread ---------------------------------------------------------------------

    def _write(self) -> None:
        alone = True
        while group := self._next_group(alone):
            alone = len(group) == 1
            started = time.monotonic()
            self._writing = group
            outcomes = self._committed(group)
            self._note(group, outcomes, time.monotonic() - started)
            _deliver(group, outcomes)
            self._writing = []

    def _next_group(self, alone: bool) -> list[_Item]:
        """What goes into the next transaction; empty when the queue is closed and drained."""
        with self._changed:
            while not self._items and not self._closing:
                self._changed.wait()
            if self._items and not alone and not self._closing:
                until = self._items[0].put_at + self._max_wait
                while (left := until - time.monotonic()) > 0 and not self._closing:
                    self._changed.wait(left)
            group: list[_Item] = []
            size = 0
            while self._items and len(group) < GROUP_BATCHES:
                size += self._items[0].size
                if group and size > GROUP_BYTES:
                    break
                group.append(self._items.popleft())
            return group

    def _committed(self, group: Sequence[_Item], *, again: bool = True) -> list[Outcome]:
        """The outcome of each item, after as many transactions as it takes."""
        try:
            return list(self._database.run(lambda c: _store(c, group), attempts=_ATTEMPTS))
        except StoreError as error:
            if again and isinstance(error, StoreUnavailableError) and error.outcome_unknown:
                return self._found_out(group, error)
            if isinstance(error, _OUTAGES) or len(group) == 1:
                return [error] * len(group)
        except Exception as error:  # noqa: BLE001  the writer outlives whatever a batch does
            if len(group) == 1:
                self._log.error("batch not written", exc_info=error)
                return [error]
        # One of them is refused: each on its own, so that the others get in.
        return [outcome for item in group for outcome in self._committed([item])]

    def _found_out(self, group: Sequence[_Item], error: StoreUnavailableError) -> list[Outcome]:
        """The outcomes of a group whose commit was under way when the connection was lost.

        Items with a key are simply sent again: the database refuses what is there already. Of the
        others nobody can tell, and their senders have to know that.
        """
        keyed = [item for item in group if item.batch and item.batch.idempotency]
        found = iter(self._committed(keyed, again=False) if keyed else ())
        return [next(found) if item in keyed else error for item in group]

    def _note(self, group: Sequence[_Item], outcomes: Sequence[Outcome], seconds: float) -> None:
        failures = Counter(type(o).__name__ for o in outcomes if isinstance(o, _OUTAGES))
        if failures and not self._failing:
            self._log.warning("telemetry cannot be stored", errors=dict(failures))
        elif not failures and self._failing:
            self._log.info("telemetry is stored again")
        self._failing = bool(failures)
        if not failures:
            rate = sum(item.size for item in group) / max(seconds, 1e-6)
            self._bytes_per_second += 0.2 * (rate - self._bytes_per_second)


def _store(connection: Connection, group: Sequence[_Item]) -> list[int]:
    """Ids of the group's batches, 0 where an item only counts."""
    batches = [item.batch for item in group if item.batch is not None]
    ids = iter(store_batches(connection, batches) if batches else ())
    rejected: Counter[str] = Counter()
    duplicates: Counter[str] = Counter()
    for item in group:
        rejected[item.drafter] += item.rejected
        duplicates[item.drafter] += item.duplicates
    for drafter in sorted(rejected):
        if rejected[drafter] or duplicates[drafter]:
            count_rejects(connection, drafter, rejected[drafter], duplicates[drafter])
    return [0 if item.batch is None else next(ids) for item in group]


def _deliver(group: Sequence[_Item], outcomes: Sequence[Outcome]) -> None:
    """Tell each waiting caller, in one step per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[int], Outcome]]] = {}
    for item, outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(item.future.get_loop(), []).append((item.future, outcome))
    for loop, settled in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, settled)
        except RuntimeError:  # the loop has ended; nobody waits any longer
            continue


def _settle(settled: Sequence[tuple[asyncio.Future[int], Outcome]]) -> None:
    for future, outcome in settled:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Look at an error, for the case that its caller has gone."""
    if not future.cancelled():
        future.exception()


def _shutting_down() -> ProblemError:
    return ProblemError(
        "shutting-down", "The service is shutting down.", headers={"Retry-After": "5"}
    )
