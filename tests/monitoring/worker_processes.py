"""Workers in processes that can be killed, forked from one that has imported everything."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from monitoring import recalibration
from monitoring.store.database import Database
from monitoring.worker import Worker, WorkerSettings

LEASE_SECONDS = 1.5
LONG_LEASE_SECONDS = 6.0  # where a worker that lives must not lose it, however busy the machine is


def context() -> Any:
    """Forks from a server without threads or connections."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.monitoring.worker_processes"])
    return found


def work(url: str, owner: str, pause: float, fitting: Any, lease: float) -> None:
    """A worker with a short lease; ``fitting`` is set when a fit is made, before its commit."""
    fit = recalibration.fit_challenger

    def slow(*arguments: Any, **options: Any) -> Any:
        report = fit(*arguments, **options)
        fitting.set()
        time.sleep(pause)
        return report

    recalibration.fit_challenger = slow
    settings = WorkerSettings(
        lease_seconds=lease, beat_seconds=0.4, poll_seconds=0.05, chores_seconds=3600.0
    )
    Worker(Database.open(url), owner, settings).run(threading.Event())


@contextmanager
def worker(
    url: str, owner: str, *, pause: float = 0.0, lease: float = LEASE_SECONDS
) -> Iterator[tuple[BaseProcess, Any]]:
    """A running worker and its ``fitting`` event; it is killed at the end."""
    forks = context()
    fitting = forks.Event()
    process = forks.Process(target=work, args=(url, owner, pause, fitting, lease), daemon=True)
    process.start()
    try:
        yield process, fitting
    finally:
        process.kill()
        process.join(30.0)
