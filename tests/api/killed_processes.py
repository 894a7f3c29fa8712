"""A service and a worker in processes that are killed, forked from one that imported everything."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

import httpx

from api.server import run
from api.settings import Settings
from tests.monitoring import worker_processes

START_SECONDS = 120.0


def context() -> Any:
    """Forks from a server without threads or connections: a start costs no imports."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["tests.api.killed_processes"])
    return found


def serve(url: str, port: int) -> None:
    """The API, as ``python -m api.server`` runs it."""
    run(Settings(database_url=url, port=port, role="api", log_level="error"))


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found: int = taken.getsockname()[1]
        return found


@contextmanager
def service(url: str, port: int) -> Iterator[BaseProcess]:
    """A service that answers; it is killed at the end."""
    process = context().Process(target=serve, args=(url, port), daemon=True)
    process.start()
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", process)
        yield process
    finally:
        process.kill()
        process.join(30.0)


def wait_until_ready(address: str, process: BaseProcess) -> None:
    """Return when the service answers that it is ready."""
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends and process.is_alive():
        try:
            if httpx.get(f"{address}/readyz", timeout=10.0).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(f"no clean start: exit code {process.exitcode}")


def worker(url: str, owner: str) -> Any:
    """A worker with short leases; it is killed at the end of the block."""
    return worker_processes.worker(url, owner, pause=0.02)
