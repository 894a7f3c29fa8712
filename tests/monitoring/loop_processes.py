"""Closed loops in processes that are killed at a chosen moment of a chosen turn."""

from __future__ import annotations

import os
import signal
from typing import Any

from monitoring import closed_loop
from monitoring.closed_loop import ClosedLoop
from monitoring.loop_settings import LoopSettings
from monitoring.store import monitor_states
from monitoring.store.database import Database
from tests.monitoring.worker_processes import context

LEASE_SECONDS = 2.0
MOMENTS = ("folding", "committing", "committed")


def loop(url: str, owner: str, moment: str | None, at: int, through: int, done: Any) -> None:
    """Turns until batch ``through``; ``kill -9`` of itself at the moment of turn ``at``."""
    database = Database.open(url)
    turns = ClosedLoop(
        database, owner, LoopSettings(refit_seconds=0.0), batches=1, lease_seconds=LEASE_SECONDS
    )
    count = 0
    fold, carry_out, run = closed_loop.fold, closed_loop.carry_out, database.run

    def folding(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        found = fold(*arguments, **options)
        die("folding")
        return found

    def committing(*arguments: Any, **options: Any) -> Any:
        found = carry_out(*arguments, **options)
        die("committing")  # everything is written, nothing is committed
        return found

    def committed(work: Any, **options: Any) -> Any:
        found = run(work, **options)
        if getattr(work, "__name__", "") == "commit":
            die("committed")
        return found

    def die(now: str) -> None:
        if (now, count) == (moment, at):
            os.kill(os.getpid(), signal.SIGKILL)

    closed_loop.fold, closed_loop.carry_out = folding, committing
    database.run = committed  # type: ignore[method-assign]
    while not done.is_set():
        if not turns.turn("drafter"):
            done.wait(0.05)  # a lease that ran out on a busy machine is taken again
        with database.read() as connection:
            row = monitor_states.load_document(connection, "drafter")
        if row is not None and row.consumed_through >= through:
            done.set()


def process(
    url: str, owner: str, *, through: int, moment: str | None = None, at: int = 0
) -> tuple[Any, Any]:
    """A started process, and the event it sets when it has read batch ``through``."""
    forks = context()
    done = forks.Event()
    started = forks.Process(target=loop, args=(url, owner, moment, at, through, done), daemon=True)
    started.start()
    return started, done
