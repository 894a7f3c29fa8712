"""The worker: leases jobs, keeps their leases, and does what nobody asks for in between.

Several workers may run against one database. What one of them leaves half done, by a crash, a lost
connection or a lost lease, leaves no trace; the job is taken over when its lease ends.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from calib.errors import CalibrationError, ConfigurationError
from monitoring.closed_loop import ClosedLoop
from monitoring.job_lease import LeaseKeeper
from monitoring.loop_settings import LoopSettings
from monitoring.recalibration import recalibrate
from monitoring.store.database import Database
from monitoring.store.errors import LeaseLostError, StoreError
from monitoring.store.events import open_event, resolve
from monitoring.store.jobs import (
    LEASE_SECONDS,
    Job,
    check_fence,
    enqueue,
    finish,
    lease_next,
    list_jobs,
    release,
)
from monitoring.telemetry_report import report_job
from monitoring.windows import DEFAULT_WINDOW_ROWS
from monitoring.worker_chores import Chores

__all__ = ["Handler", "Worker", "WorkerSettings"]

_log = logging.getLogger(__name__)

_MOST_RUNNING: Final = 1000  # drafters with a running job that one look considers
_LONGEST_BACK_OFF: Final = 30.0

Handler = Callable[[Database, Job], object]
"""Does one job and finishes it in the transaction of its effects."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker goes about it.

    Attributes:
        window_rows: newest rows of a fit or a report.
        report_seconds: age at which a report is made anew, if rows came since.
        retention_seconds: oldest telemetry kept; None keeps all.
        retention_bytes: telemetry kept at most; None keeps all.
        history_seconds: resolved events and silent engines are kept so long; None keeps all.
        chores_seconds: pause between two rounds of retention.
        poll_seconds: pause between two looks for jobs.
        lease_seconds: length of a lease.
        beat_seconds: pause between heartbeats.
        grace_seconds: how long a running job may go on after the stop; then it is released.
        loop: of the closed loop; None leaves telemetry unwatched.
        valid_for_seconds: how long clients may call publications of the loop and of jobs fresh;
            None: no end.
    """

    window_rows: int = DEFAULT_WINDOW_ROWS
    report_seconds: float = 300.0
    retention_seconds: float | None = None
    retention_bytes: int | None = None
    history_seconds: float | None = None
    chores_seconds: float = 600.0
    poll_seconds: float = 0.5
    lease_seconds: float = LEASE_SECONDS
    beat_seconds: float = LEASE_SECONDS / 3.0
    grace_seconds: float = 3.0
    loop: LoopSettings | None = None
    valid_for_seconds: float | None = None


class Worker:
    """Does the jobs of one database, one at a time.

    Args:
        database: of this process; migrated.
        owner: names this worker in leases, unique among all processes.
        settings: defaults when None.
        handlers: what does a job of each kind; the shipped ones when None.
    """

    def __init__(
        self,
        database: Database,
        owner: str,
        settings: WorkerSettings | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        self._database = database
        self._owner = owner
        self._settings = settings or WorkerSettings()
        self._handlers = handlers or _shipped_handlers(self._settings)
        self._chores = Chores(
            database,
            report_seconds=self._settings.report_seconds,
            retention_seconds=self._settings.retention_seconds,
            retention_bytes=self._settings.retention_bytes,
            history_seconds=self._settings.history_seconds,
            every_seconds=self._settings.chores_seconds,
        )

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set; a job under way gets the grace period, then it is released.

        The database may come and go: the worker waits with growing pauses.
        """
        _log.info("worker %s started", self._owner)
        loop = self._start_loop(stop)
        failures = 0
        while not stop.is_set():
            try:
                worked = self.run_once(stop)
                if not stop.is_set():
                    self._chores.run()
                failures = 0
            except StoreError as error:
                failures += 1
                pause = min(_LONGEST_BACK_OFF, 0.5 * 2.0**failures) * random.uniform(0.5, 1.0)
                _log.warning("the database failed, next try in %.1f s: %s", pause, error)
                stop.wait(pause)
                continue
            if not worked:
                stop.wait(self._settings.poll_seconds)
        if loop is not None:
            loop.join(self._settings.grace_seconds)
        _log.info("worker %s stopped", self._owner)

    def _start_loop(self, stop: threading.Event) -> threading.Thread | None:
        """Turns of the closed loop beside the jobs: a fit must not keep alarms waiting."""
        settings = self._settings
        if settings.loop is None:
            return None
        loop = ClosedLoop(
            self._database,
            self._owner,
            settings.loop,
            lease_seconds=settings.lease_seconds,
            poll_seconds=settings.poll_seconds,
            valid_for_seconds=settings.valid_for_seconds,
        )
        # A daemon: what a turn had not committed when the process ends leaves no trace.
        thread = threading.Thread(target=loop.run, args=(stop,), name="closed-loop", daemon=True)
        thread.start()
        return thread

    def run_once(self, stop: threading.Event | None = None) -> bool:
        """Do the next job, if there is one; returns whether there was.

        Args:
            stop: when set, the job is given up after the grace period and released.

        Raises:
            StoreError: the database failed; the job is released or its lease runs out.
        """
        if not self._anything_to_lease():
            return False
        job = self._database.run(
            lambda connection: lease_next(
                connection, self._database, self._owner, seconds=self._settings.lease_seconds
            )
        )
        if job is None:
            return False
        self._do(job, stop or threading.Event())
        return True

    def _anything_to_lease(self) -> bool:
        """A look without writing: leasing writes, and on SQLite a write costs a disk flush."""
        with self._database.read() as connection:
            if list_jobs(connection, status="queued", limit=1):
                return True
            running = list_jobs(connection, status="running", limit=_MOST_RUNNING)
            now = self._database.now(connection) if running else 0.0
        return any((job.lease_until or 0.0) <= now for job in running)

    def _do(self, job: Job, stop: threading.Event) -> None:
        """Run a leased job beside its heartbeats; a store failure releases it and comes out."""
        _log.info("job %s (%s of %s) started", job.id, job.kind, job.drafter)
        started = time.monotonic()
        work = _Work(self._handlers.get(job.kind, _unknown_kind), self._database, job)
        keeper = LeaseKeeper(
            self._database,
            job,
            lease_seconds=self._settings.lease_seconds,
            beat_seconds=self._settings.beat_seconds,
        )
        with keeper:
            work.start()
            finished = self._await(work, stop)
        if not finished:
            self._give_back(job, "the worker is stopping")
            return
        self._conclude(job, work.error, time.monotonic() - started)

    def _await(self, work: _Work, stop: threading.Event) -> bool:
        """Whether the work ended before the stop and its grace period did."""
        while not stop.is_set():
            if work.wait(0.1):
                return True
        return work.wait(self._settings.grace_seconds)

    def _conclude(self, job: Job, error: Exception | None, seconds: float) -> None:
        if error is None:
            _log.info("job %s ended after %.1f s", job.id, seconds)
            self._database.run(lambda connection: resolve(connection, _failure_key(job)))
        elif isinstance(error, LeaseLostError):
            _log.warning("job %s: the result is thrown away: %s", job.id, error)
        elif isinstance(error, StoreError):
            self._give_back(job, str(error))
            raise error
        else:
            self._fail(job, error)

    def _give_back(self, job: Job, reason: str) -> None:
        try:
            # Not for long: a worker that stops has little time, and the lease ends by itself.
            self._database.run(lambda connection: release(connection, job), attempts=2)
            _log.info("job %s released: %s", job.id, reason)
        except LeaseLostError:
            pass  # it committed in the last moment, or belongs to somebody else
        except StoreError as error:
            _log.warning("job %s keeps its lease until it ends: %s", job.id, error)

    def _fail(self, job: Job, error: Exception) -> None:
        known = isinstance(error, CalibrationError)
        _log.error("job %s failed: %s", job.id, error, exc_info=None if known else error)
        # What the error says may hold a user's values only where it is one of ours.
        reason = str(error) if known else "see the log of the worker"
        details = {"type": type(error).__name__, "reason": reason}

        def commit(connection: Connection) -> None:
            check_fence(connection, self._database, job)
            open_event(
                connection,
                "job_failed",
                "warning",
                f"The {job.kind} of {job.drafter} failed",
                drafter=job.drafter,
                details={**details, "job": job.id},
                dedup_key=_failure_key(job),
            )
            finish(connection, job, "failed", None, details)

        try:
            self._database.run(commit)
        except LeaseLostError as lost:
            _log.warning("%s", lost)


class _Work:
    """One handler on one job in a thread of its own, so that a stop need not wait for it."""

    def __init__(self, handler: Handler, database: Database, job: Job) -> None:
        self.error: Exception | None = None
        self._handler = handler
        self._database = database
        self._job = job
        # A daemon: a process that stops does not wait for a fit whose result nobody will take.
        self._thread = threading.Thread(target=self._run, name=f"job-{job.id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether the work ended within this time."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._handler(self._database, self._job)
        except Exception as error:  # noqa: BLE001 - whatever a job does, the worker goes on
            self.error = error


def _shipped_handlers(settings: WorkerSettings) -> Mapping[str, Handler]:
    def recalibration(database: Database, job: Job) -> object:
        outcome = recalibrate(
            database,
            job,
            default_rows=settings.window_rows,
            valid_for_seconds=settings.valid_for_seconds,
        )
        if outcome.result["window"]["rows"]:
            database.run(
                lambda connection: enqueue(connection, job.drafter, "report", {}, actor="worker")
            )
        return outcome

    def report(database: Database, job: Job) -> object:
        return report_job(database, job, default_rows=settings.window_rows)

    return {"recalibration": recalibration, "report": report}


def _unknown_kind(database: Database, job: Job) -> object:
    raise ConfigurationError("kind", job.kind, "upgrade this worker: it has no such job")


def _failure_key(job: Job) -> str:
    return f"job_failed/{job.kind}/{job.drafter}"
