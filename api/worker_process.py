"""The worker as a process of its own: settings come in on standard input, its end means "leave".

The parent keeps its end of the pipe open as long as it lives. When it is gone, however it went,
the pipe ends and the worker stops as on SIGTERM. Addresses with passwords stay out of the list of
processes this way, too.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import time
import uuid
from types import FrameType
from typing import TYPE_CHECKING, Final

from api.logs import configure_logs
from api.settings import Settings
from api.tracking_process import start_mirror
from calib.errors import ConfigurationError
from monitoring.store.database import Database
from monitoring.store.errors import StoreBusyError, StoreUnavailableError
from monitoring.store.migrate import upgrade

if TYPE_CHECKING:
    from monitoring.loop_settings import LoopSettings

__all__ = ["main", "run_worker", "stop_on_signals"]

_log = logging.getLogger(__name__)

# Share of the shutdown time that a running job may still take.
_GRACE: Final = 1.0 / 3.0
_LONGEST_BACK_OFF: Final = 15.0
_DAY_SECONDS: Final = 24 * 3600.0
_NICENESS: Final = 5  # beside an API process on few cores: polls go first, fits can wait


def main() -> None:
    """Read settings from standard input and work until told to stop, or until it ends."""
    os.nice(_NICENESS)
    values = json.loads(sys.stdin.buffer.readline())
    settings = Settings(**values)
    configure_logs(settings.log_level, settings.log_format)
    stop = threading.Event()
    stop_on_signals(stop)
    watch = threading.Thread(target=_stop_with_parent, args=(stop,), name="parent", daemon=True)
    watch.start()
    run_worker(settings, stop)


def stop_on_signals(stop: threading.Event) -> None:
    """Set ``stop`` on SIGTERM and SIGINT, once; for the main thread."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def run_worker(settings: Settings, stop: threading.Event) -> None:
    """Do jobs until ``stop`` is set, then leave the process within the shutdown time.

    Args:
        settings: of the service.
        stop: set from outside.

    Raises:
        StoreError: the database belongs to a newer release.
    """
    # Here, not above: the process that answers polls imports this module's names only.
    from monitoring.worker import Worker, WorkerSettings

    _leave_in_time(stop, settings.shutdown_seconds)
    database = Database.open(settings.database_url)
    if not _migrated(database, stop):
        return
    days, history = settings.retention_days, settings.history_days
    worker = Worker(
        database,
        f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        WorkerSettings(
            window_rows=settings.recalibration_rows,
            report_seconds=settings.report_seconds,
            retention_seconds=None if days is None else days * _DAY_SECONDS,
            retention_bytes=settings.retention_bytes,
            history_seconds=None if history is None else history * _DAY_SECONDS,
            grace_seconds=settings.shutdown_seconds * _GRACE,
            loop=_loop_settings(settings),
            valid_for_seconds=settings.valid_for_seconds,
        ),
    )
    alerts = _start_alerts(settings, database, stop)
    mirror = start_mirror(settings, database)
    worker.run(stop)
    if mirror is not None:
        mirror.stop(settings.shutdown_seconds * _GRACE)
    alerts.join(settings.shutdown_seconds * _GRACE)
    database.close()
    if any(thread.name.startswith("job-") for thread in threading.enumerate()):
        # A fit that was given up still runs in native code, which does not like to be unwound.
        _exit(0)


def _loop_settings(settings: Settings) -> LoopSettings | None:
    """How the closed loop goes about it; None where it is switched off."""
    if settings.closed_loop == "off":
        return None
    from monitoring.loop_settings import LoopSettings

    return LoopSettings(
        automatic=settings.closed_loop == "on",
        act_threshold=settings.act_threshold,
        warn_threshold=settings.warn_threshold,
        tolerance=settings.drift_tolerance,
        design_effect=settings.drift_design_effect,
        exploration_share=settings.exploration_share,
        exploration_share_on_warning=settings.exploration_share_on_warning,
        refit_rows=settings.refit_rows,
        refit_seconds=settings.refit_seconds,
        minimum_rows=settings.refit_minimum_rows,
        cool_down_rows=settings.cool_down_rows,
        silence_seconds=settings.telemetry_silent_seconds,
    )


def _start_alerts(
    settings: Settings, database: Database, stop: threading.Event
) -> threading.Thread:
    """Deliver alerts in a thread of their own: no job waits for a receiver, and no alert for a job.

    Without receivers it works as well: what happens then is not told to one that comes later.
    """
    from monitoring.alerts.delivery import AlertDelivery, DeliverySettings

    receivers = []
    for one in settings.alert_receivers:
        try:
            receivers.append(one.receiver())
        except ConfigurationError as error:
            _log.error("this receiver gets no alerts: %s", error)
    delivery = AlertDelivery(database, receivers, DeliverySettings(base_url=settings.service_url))
    thread = threading.Thread(target=delivery.run, args=(stop,), name="alerts", daemon=True)
    thread.start()
    return thread


def _migrated(database: Database, stop: threading.Event) -> bool:
    """Whether the tables are there, after waiting for the database for as long as it takes."""
    failures = 0
    while not stop.is_set():
        try:
            upgrade(database)
            return True
        except (StoreUnavailableError, StoreBusyError) as error:
            failures += 1
            pause = min(_LONGEST_BACK_OFF, 0.25 * 2.0**failures) * random.uniform(0.5, 1.0)
            _log.warning("no database yet, next try in %.1f s: %s", pause, error)
            stop.wait(pause)
    return False


def _stop_with_parent(stop: threading.Event) -> None:
    # Not sys.stdin: a thread inside its lock would stand in the way of the interpreter's end.
    while os.read(0, 4096):
        pass
    stop.set()


def _leave_in_time(stop: threading.Event, seconds: float) -> None:
    """Leave the process when it has not ended by itself within this time of the stop."""

    def leave() -> None:
        stop.wait()
        time.sleep(seconds)
        _log.error("still busy %.0f s after the stop; leaving, leases run out", seconds)
        _exit(1)

    threading.Thread(target=leave, name="deadline", daemon=True).start()


def _exit(code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
