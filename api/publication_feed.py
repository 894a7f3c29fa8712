"""The current publication of every drafter, in memory, for polls that never touch the database.

A thread watches the database and hands news to the event loop; everything else here runs on the
loop. What a drafter is served with never goes back: an older edition (publication number, then
changes of exploration), from whatever source, is not taken. While the database is away the last
known publications are served.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

from api.publication_changes import ChangeHints, change_hints
from api.publication_variants import Published
from monitoring.store import drafters, publications

if TYPE_CHECKING:
    from monitoring.store.clock import Clock
    from monitoring.store.database import Database

__all__ = ["PublicationFeed", "Published"]

# Without a hint editions are compared this often: the bound on what a missed hint may delay,
# and on how long an outage goes unnoticed.
_LOOK_SECONDS = 1.0
_LONGEST_PAUSE = 2.0
# A watcher that has not ended a round for this long hangs.
_HANGS_SECONDS = 30.0


class PublicationFeed:
    """Publications in memory, and the requests that wait for the next one.

    Args:
        database: where publications are.
        interval: how often SQLite is asked for changes, in seconds.
        monotonic: seconds for the age of the last look.
    """

    def __init__(
        self, database: Database, *, interval: float = 0.05, monotonic: Clock = time.monotonic
    ) -> None:
        self._database = database
        self._interval = interval
        self._monotonic = monotonic
        self._published: dict[str, Published] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._poked = threading.Event()
        self._stopping = False
        self._refreshing: asyncio.Task[None] | None = None
        self._looked_at = monotonic()
        self._log = structlog.get_logger("api.feed")
        self.reachable = False
        """Whether the last look at the database succeeded."""
        self.releasing = False
        """Whether the service is shutting down and holds no request any longer."""

    @property
    def alive(self) -> bool:
        """Whether the watcher runs and ends its rounds."""
        running = self._thread is not None and self._thread.is_alive()
        return running and self._monotonic() - self._looked_at < _HANGS_SECONDS

    @property
    def waiting(self) -> int:
        """Requests held right now."""
        return sum(len(waiting) for waiting in self._waiting.values())

    async def start(self) -> None:
        """Read what is published and begin to watch.

        Raises:
            StoreError: the database cannot be read.
        """
        self._loop = asyncio.get_running_loop()
        self._take(await asyncio.to_thread(self._read, self._editions()))
        self._looked()
        self._thread = threading.Thread(target=self._watch, name="publication-feed", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Stop watching; what is held is released."""
        self.release()
        self._stopping = True
        self._poked.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 5.0)

    def release(self) -> None:
        """Let every held request go, and hold no other: the service shuts down."""
        self.releasing = True
        for drafter in list(self._waiting):
            self._wake(drafter)

    def current(self, drafter: str) -> Published | None:
        """What is published for a drafter, as far as this process knows."""
        return self._published.get(drafter)

    async def find(self, drafter: str) -> Published | None:
        """What is published for a drafter; one that is not known is looked up in the database.

        Raises:
            StoreError: the database cannot be read.
        """
        found = self._published.get(drafter)
        if found is None:
            await self.refresh()
            found = self._published.get(drafter)
        return found

    async def refresh(self) -> None:
        """Look at the database now; requests that ask at the same time share one look.

        Raises:
            StoreError: the database cannot be read.
        """
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
            # Looked at even when everybody who asked has gone.
            self._refreshing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        try:
            self._take(await asyncio.to_thread(self._read, self._editions()))
        finally:
            self._refreshing = None

    async def wait(
        self,
        drafter: str,
        after: publications.Edition,
        seconds: float,
        *,
        until: asyncio.Future[None] | None = None,
    ) -> None:
        """Return when a later edition than ``after`` is known, or after ``seconds``.

        Also returns when ``until`` is done and when the service shuts down; callers look at
        :meth:`current` in any case.
        """
        found = self._published.get(drafter)
        if self.releasing or (found is not None and found.edition > after):
            return
        loop = asyncio.get_running_loop()
        # One bare future and timer each: two thousand of these are woken at once.
        future: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(drafter, set())
        waiting.add(future)
        timer = loop.call_later(seconds, _resolve, future)
        if until is not None:
            until.add_done_callback(lambda _: _resolve(future))
        try:
            await future
        finally:
            timer.cancel()
            waiting.discard(future)
            if not waiting and self._waiting.get(drafter) is waiting:
                del self._waiting[drafter]

    def apply(self, published: Published) -> None:
        """Take what this process has just published itself; call it on the event loop."""
        self._take([published])

    def poke(self) -> None:
        """Make the watcher look now."""
        self._poked.set()

    # On the event loop -------------------------------------------------------------------------

    def _editions(self) -> dict[str, publications.Edition]:
        # Also called in the watching thread: a copy is made in one step.
        return {name: held.edition for name, held in self._published.copy().items()}

    def _take(self, news: Iterable[Published]) -> None:
        for published in news:
            name = published.drafter.name
            held = self._published.get(name)
            if held is None or published.edition > held.edition:
                self._published[name] = published
                self._wake(name)

    def _wake(self, drafter: str) -> None:
        for future in self._waiting.pop(drafter, ()):
            _resolve(future)

    def _looked(self) -> None:
        self._looked_at = self._monotonic()
        if not self.reachable:
            self.reachable = True
            self._log.info("following publications", drafters=len(self._published))

    def _missed(self, reason: str) -> None:
        self._looked_at = self._monotonic()  # the round ended, though not well
        if self.reachable:
            self.reachable = False
            self._log.warning("the database is away; serving what is known", reason=reason)

    # In the watching thread --------------------------------------------------------------------

    def _read(self, known: dict[str, publications.Edition]) -> list[Published]:
        """Publications of another edition than ``known``; one snapshot."""
        with self._database.read() as connection:
            newest = publications.editions(connection)
            changed = [name for name, found in newest.items() if known.get(name, (0, 0)) < found]
            return [
                Published(
                    drafters.get(connection, name),
                    publications.current_publication(connection, name),
                )
                for name in changed
            ]

    def _watch(self) -> None:
        hints: ChangeHints | None = None
        failures = 0
        while not self._stopping:
            self._poked.clear()
            try:
                # The hints first: what is published between the two is seen by the next wait.
                hints = hints or change_hints(self._database, self._interval)
                news = self._read(self._editions())
                self._post(news, None)
                failures = 0
                hints.wait(self._poked, _LOOK_SECONDS)
            except Exception as error:  # noqa: BLE001  the watcher outlives every outage
                self._post([], f"{type(error).__name__}: {error}")
                _close(hints)
                hints = None
                failures += 1
                self._poked.wait(min(_LONGEST_PAUSE, 0.1 * 2.0 ** min(failures, 8)))
        _close(hints)

    def _post(self, news: list[Published], fault: str | None) -> None:
        """Hand news, or a fault, to the event loop."""
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._received, news, fault)

    def _received(self, news: list[Published], fault: str | None) -> None:
        if fault is not None:
            self._missed(fault)
            return
        self._take(news)
        self._looked()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _close(hints: ChangeHints | None) -> None:
    """Close hints that may be broken."""
    if hints is not None:
        try:
            hints.close()
        except Exception as error:  # noqa: BLE001  its connection is gone already
            structlog.get_logger("api.feed").debug("closing failed", reason=str(error))
