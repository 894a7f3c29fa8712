"""Keeping the lease of a running job: a thread that says "still here" until the work is done."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import Final, Self

from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError, StoreError
from monitoring.store.jobs import Job, heartbeat

__all__ = ["LeaseKeeper"]

_log = logging.getLogger(__name__)

_JOIN_SECONDS: Final = 1.0


class LeaseKeeper:
    """Renews the lease of one job until the block ends or the lease is lost.

    A heartbeat that the database does not take is tried again at the next beat: the fence in the
    committing transaction decides whether the work counts, this thread only saves others the wait
    and the worker the work.

    Args:
        database: where the job is leased.
        job: as it was leased.
        lease_seconds: what each beat asks for.
        beat_seconds: pause between beats, well below ``lease_seconds``.
    """

    def __init__(
        self, database: Database, job: Job, *, lease_seconds: float, beat_seconds: float
    ) -> None:
        self._database = database
        self._job = job
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds
        self._closing = threading.Event()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease-{job.id}", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether the job belongs to somebody else by now."""
        return self._lost.is_set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the beats; one that hangs in the database is left behind, it can do no harm."""
        self._closing.set()
        self._thread.join(_JOIN_SECONDS)

    def _keep(self) -> None:
        renewed = time.monotonic()
        while not self._closing.wait(self._beat_seconds):
            try:
                self._beat()
                renewed = time.monotonic()
            except LeaseLostError as error:
                _log.warning("%s", error)
                self._lost.set()
                return
            except StoreError as error:
                silent = time.monotonic() - renewed
                _log.warning("job %s: no heartbeat for %.0f s: %s", self._job.id, silent, error)

    def _beat(self) -> None:
        self._database.run(
            lambda connection: heartbeat(
                connection, self._database, self._job, seconds=self._lease_seconds
            ),
            attempts=1,
        )
