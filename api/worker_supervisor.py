"""Keeps one worker process alive beside the API, and ends it with it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

import structlog

from api.settings import Settings

__all__ = ["WorkerSupervisor", "child_command", "child_environment"]

_log = structlog.get_logger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_HEALTHY_SECONDS: Final = 60.0  # a worker that lived this long has no lasting fault


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this installation in this interpreter."""
    # -P: a folder called "api" where the service is started must not take the module's place.
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment with this process's import path, installed or run from a checkout."""
    paths = [os.path.abspath(path) for path in sys.path]
    return os.environ | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


class WorkerSupervisor:
    """Starts the worker and restarts it with growing pauses when it dies.

    Args:
        settings: handed to the worker on its standard input.
        module: what runs in the child.
        name: what it is called in the log.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        module: str = "api.worker_process",
        name: str = "worker",
    ) -> None:
        self._settings = settings
        self._module = module
        self._name = name
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)

    @property
    def process_id(self) -> int | None:
        """Process id of the running worker; None while there is none."""
        child = self._child
        return None if child is None or child.poll() is not None else child.pid

    def start(self) -> None:
        """Start the worker; returns at once."""
        self._thread.start()

    def leave(self) -> None:
        """Ask the worker to leave, once, and start none again; returns at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._lock:
            child = self._child
        if child is not None:
            _close_input(child)
            child.terminate()

    def stop(self, seconds: float) -> None:
        """Ask the worker to leave and wait for it; after ``seconds`` it is killed."""
        self.leave()
        child = self._child
        if child is None:
            return
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            _log.warning(f"the {self._name} did not leave in time", process=child.pid)
            child.kill()
            child.wait()
        self._thread.join()

    def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            started = time.monotonic()
            child = self._spawn()
            if child is None:
                return
            code = child.wait()
            _close_input(child)
            if self._stopping.is_set():
                return
            if time.monotonic() - started >= _HEALTHY_SECONDS:
                pause = _FIRST_PAUSE
            _log.error(f"the {self._name} ended", code=code, restart_seconds=pause)
            if self._stopping.wait(pause):
                return
            pause = min(2.0 * pause, _LONGEST_PAUSE)

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """The new child, or None when the service is stopping."""
        with self._lock:
            if self._stopping.is_set():
                return None
            child = subprocess.Popen(
                child_command(self._module),
                stdin=subprocess.PIPE,
                env=child_environment(),
                # Ctrl-C goes to this process, which ends its children in order.
                process_group=0,
            )
            self._child = child
        _log.info(f"the {self._name} started", process=child.pid)
        with suppress(BrokenPipeError):  # it died at once; the caller notices its end
            if child.stdin is not None:
                child.stdin.write(self._settings.model_dump_json().encode() + b"\n")
                child.stdin.flush()
        return child


def _close_input(child: subprocess.Popen[bytes]) -> None:
    """End the pipe, which tells the worker to leave."""
    if child.stdin is not None and not child.stdin.closed:
        with suppress(BrokenPipeError):
            child.stdin.close()
