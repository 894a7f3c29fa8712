"""What engines say about themselves when they poll: noted in memory, written in batches.

A poll costs one dictionary entry; the database sees each engine about once per interval, however
often it polls. While the database is away the newest note of each engine is kept.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from monitoring.store.engines import EngineSighting, record_sightings
from monitoring.store.errors import StoreError

if TYPE_CHECKING:
    from api.poll_query import PollQuery
    from monitoring.store.database import Database

__all__ = ["EngineSightings"]

_INTERVAL_SECONDS = 2.0
_MOST_ENGINES = 50_000


class EngineSightings:
    """The newest note of each engine since the last write. Lives on the event loop.

    Args:
        database: where they are written.
        interval: seconds between two writes.
    """

    def __init__(self, database: Database, *, interval: float = _INTERVAL_SECONDS) -> None:
        self._database = database
        self._interval = interval
        self._noted: dict[tuple[str, str], EngineSighting] = {}
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("api.engines")
        self.dropped = 0
        """Notes left out because too many different engines polled within one interval."""

    def note(self, drafter: str, query: PollQuery) -> None:
        """Remember a poll, if it names its engine."""
        if query.engine is None:
            return
        place = (drafter, query.engine)
        if place not in self._noted and len(self._noted) >= _MOST_ENGINES:
            self.dropped += 1
            return
        self._noted[place] = EngineSighting(
            drafter=drafter,
            engine=query.engine,
            client_version=query.client,
            applied_publication=query.applied_publication,
            applied_revision=query.applied_revision,
            state=query.state,
            seen_at=self._database.clock(),
        )

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.ensure_future(self._write_for_ever())

    async def stop(self) -> None:
        """Write what is left and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.flush()

    async def flush(self) -> None:
        """Write now; on a failure everything is kept for the next time."""
        noted, self._noted = self._noted, {}
        if not noted:
            return
        try:
            await asyncio.to_thread(self._write, list(noted.values()))
        except StoreError as error:
            self._noted = noted | self._noted
            self._log.warning("engines not written", engines=len(noted), reason=str(error))

    def _write(self, sightings: list[EngineSighting]) -> None:
        self._database.run(lambda connection: record_sightings(connection, sightings), attempts=2)

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            await self.flush()
