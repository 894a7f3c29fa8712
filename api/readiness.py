"""Whether the service can do its work, part by part; remembered for a second, as probes repeat."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from api.schemas import Check
from monitoring.store.errors import StoreError
from monitoring.store.migrate import is_current

if TYPE_CHECKING:
    from monitoring.store.database import Database

__all__ = ["Readiness", "readiness"]

_REMEMBERED_SECONDS = 1.0
_LONGEST_SECONDS = 3.0


class Readiness:
    """Asks the database whether it answers and has the tables of this release.

    Args:
        database: what is asked.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._found: dict[str, Check] = {}
        self._asked_at = float("-inf")
        self._asking: asyncio.Task[dict[str, Check]] | None = None

    async def database_checks(self) -> dict[str, Check]:
        """``database`` and ``migrations``; probes that come together share one question."""
        if time.monotonic() - self._asked_at < _REMEMBERED_SECONDS:
            return self._found
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(asyncio.to_thread(self._ask))
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                self._found = await asyncio.shield(self._asking)
        except TimeoutError:
            slow = f"no answer within {_LONGEST_SECONDS:g} seconds"
            self._found = {"database": Check(ok=False, detail=slow)}
        self._asked_at = time.monotonic()
        return self._found

    def _ask(self) -> dict[str, Check]:
        try:
            self._database.check()
            current = is_current(self._database)
        except StoreError as error:
            # The class says enough; the reason may name hosts and files.
            return {"database": Check(ok=False, detail=type(error).__name__)}
        detail = "current" if current else "the tables are of another release"
        return {
            "database": Check(ok=True, detail="answers"),
            "migrations": Check(ok=current, detail=detail),
        }


async def readiness(state: Any) -> dict[str, Check]:
    """Every part that must be well before requests are sent here.

    Args:
        state: the application's state, with ``readiness`` and ``feed``.
    """
    checks = dict(await state.readiness.database_checks())
    feed = state.feed
    if feed.releasing:
        checks["publications"] = Check(ok=False, detail="shutting down")
    elif not feed.alive:
        checks["publications"] = Check(ok=False, detail="the watcher has stopped")
    else:
        detail = "followed" if feed.reachable else "serving the last known"
        checks["publications"] = Check(ok=feed.reachable, detail=detail)
    return checks
