"""One service in this process: the API in front, the worker (and the demo's story) as children."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from types import FrameType
from typing import NoReturn

import api.lean_imports  # noqa: F401  before what it loads

# isort: split
import structlog
import typer

from api.logs import configure_logs
from api.settings import Settings
from api.worker_supervisor import WorkerSupervisor, child_command, child_environment
from calib.errors import ConfigurationError
from monitoring.mlflow_mirror.tracking_place import is_installed

__all__ = ["run_service", "run_worker_alone"]

_log = structlog.get_logger(__name__)


def run_service(settings: Settings, *, demo: bool = False, exit_after: bool = False) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code.

    Args:
        settings: role ``all`` or ``api``.
        demo: also tell the story of :mod:`api.service_demo.process` in a child process.
        exit_after: stop when the story is over, with its exit code.

    Raises:
        ConfigurationError: the port is taken, or the host is open to others without tokens.
        StoreError: the database cannot be used: unreachable, or of a newer release.
    """
    from api.server import leave_within, listening_socket, run

    configure_logs(settings.log_level, settings.log_format)
    # Before anything is started; port 0 becomes the one that is told to people and to the story.
    with listening_socket(settings.host, settings.port) as listener:
        settings = settings.model_copy(update={"port": listener.getsockname()[1]})
    companions = _Companions(settings, demo=demo, exit_after=exit_after)
    _leave_on_signals()
    try:
        run(settings, on_start=companions.start, on_signal=companions.leave)
    except SystemExit:
        pass  # a signal before the server had taken them over
    finally:
        companions.stop()
    leave_within()
    return companions.code


def run_worker_alone(settings: Settings) -> int:
    """Do jobs in this process until SIGINT or SIGTERM; returns the exit code.

    Raises:
        StoreError: the database belongs to a newer release.
    """
    from api.worker_process import run_worker, stop_on_signals

    configure_logs(settings.log_level, settings.log_format)
    stop = threading.Event()
    stop_on_signals(stop)
    typer.echo(f"Worker of {settings.database_name}; Ctrl-C stops it.")
    run_worker(settings, stop)
    return 0


def _leave_on_signals() -> None:
    """Leave in order also while the server has not taken the signals over."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)


class _Companions:
    """What runs beside the API once it answers: the worker, and the demo's story."""

    def __init__(self, settings: Settings, *, demo: bool, exit_after: bool) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._stopping = False
        self._ends = 0.0  # monotonic seconds; holds once they were asked to leave
        self._worker = WorkerSupervisor(settings) if settings.role == "all" else None
        self._story = _Story(settings, exit_after=exit_after) if demo else None

    @property
    def code(self) -> int:
        """Exit code of the story that decided when to stop; 0 without one."""
        return 0 if self._story is None else self._story.code

    def start(self) -> None:
        """Say where the API is, and start the rest; returns at once."""
        # In a thread of its own, which no signal interrupts half-way.
        threading.Thread(target=self._start, name="start", daemon=True).start()

    def _start(self) -> None:
        with self._lock:
            if self._stopping:
                return
            _announce(self._settings)
            for companion in (self._worker, self._story):
                if companion is not None:
                    companion.start()

    def leave(self) -> None:
        """Ask them to end while the API does; returns at once."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._ends = time.monotonic() + self._settings.shutdown_seconds
        for companion in (self._story, self._worker):
            if companion is not None:
                companion.leave()

    def stop(self) -> None:
        """End them; what has not ended within the shutdown time since it was asked is killed."""
        self.leave()
        for companion in (self._story, self._worker):
            if companion is not None:
                companion.stop(max(0.0, self._ends - time.monotonic()))


def _announce(settings: Settings) -> None:
    host = settings.host.strip("[]")
    address = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    typer.echo(f"Listening on {address}")
    typer.echo(f"Database     {settings.database_name}")
    typer.echo(f"API docs     {address}/docs")


def _tracking_arguments(settings: Settings) -> list[str]:
    """What tells the story where the mirrored runs are, if there are any."""
    try:
        place = settings.tracking_place() if is_installed() else None
    except ConfigurationError:
        return []  # the worker says what is wrong with it
    return [] if place is None else ["--tracking", place.look_command]


class _Story:
    """The demo in a process of its own, so that the API process stays as small as ever."""

    def __init__(self, settings: Settings, *, exit_after: bool) -> None:
        self.code = 0
        self._settings = settings
        self._exit_after = exit_after
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; returns at once."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        arguments = ["--url", f"http://{host}:{settings.port}"]
        arguments += ["--database", settings.database_name]
        arguments += ["--then-exits"] if self._exit_after else []
        arguments += _tracking_arguments(settings)
        command = child_command("api.service_demo.process", *arguments)
        # Its input is ours to end: like the worker, it leaves when this process is gone.
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, env=child_environment(), process_group=0
        )
        threading.Thread(target=self._await, name="story", daemon=True).start()

    def leave(self) -> None:
        """Ask it to end if it still runs; returns at once."""
        child = self._child
        if child is not None and child.poll() is None:
            self._exit_after = False
            child.terminate()

    def stop(self, seconds: float) -> None:
        """Wait for its end; after ``seconds`` it is killed."""
        child = self._child
        if child is None:
            return
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _await(self) -> None:
        child = self._child
        if child is None:
            return
        code = child.wait()
        if self._exit_after:
            self.code = code
            os.kill(os.getpid(), signal.SIGTERM)
        elif code:
            _log.error("the demo ended early", code=code)
