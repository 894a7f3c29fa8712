"""A real ``mlflow server`` on SQLite, and mirrors of it as processes of their own.

Run as a module this is such a mirror: it delivers until the outbox is empty.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from monitoring.mlflow_mirror.tracking_place import bound_calls

ROOT = Path(__file__).resolve().parents[3]
START_SECONDS = 600.0  # ten seconds on a quiet machine, minutes on one with other work


class MlflowServer:
    """A tracking server with artifacts, ready when the block begins."""

    def __init__(self, folder: Path) -> None:
        self.database = folder / "mlflow.db"
        self._log = folder / "server.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        variables = bound_calls(10.0, dict(os.environ))
        variables["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.database}"]
        command += ["--artifacts-destination", str(folder / "artifacts")]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**variables, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        ends = time.monotonic() + START_SECONDS
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", timeout=5.0).status_code == 200:
                    return self
            except httpx.TransportError:
                time.sleep(0.2)
        self.__exit__(None, None, None)
        raise TimeoutError(f"mlflow server did not start:\n{self._log.read_text()[-3000:]}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its workers are processes too
        self._process.wait(30.0)


def start_mirror(database_url: str, tracking_uri: str) -> subprocess.Popen[bytes]:
    """A mirror that ends by itself when nothing waits any more."""
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "tests.monitoring.mlflow_mirror.mlflow_server",
            database_url,
            tracking_uri,
        ],
        cwd=ROOT,
        env=bound_calls(10.0, dict(os.environ)),
        stdin=subprocess.DEVNULL,
    )


def _mirror(database_url: str, tracking_uri: str) -> None:
    from monitoring.mlflow_mirror.delivery import Delivery
    from monitoring.mlflow_mirror.mirror import Mirror, MirrorSettings
    from monitoring.mlflow_mirror.names import AliasNames
    from monitoring.mlflow_mirror.tracking_place import TrackingPlace
    from monitoring.mlflow_mirror.tracking_server import TrackingServer
    from monitoring.store.database import Database
    from monitoring.store.tracking_outbox import totals

    database = Database.open(database_url)
    stop = threading.Event()

    def wait(seconds: float) -> None:
        with database.read() as connection:
            if totals(connection).waiting == 0:
                stop.set()
        time.sleep(min(seconds, 0.5))

    def connect() -> Delivery:
        return Delivery(database, TrackingServer(TrackingPlace(tracking_uri)), AliasNames())

    # Entries of a mirror that was killed come free soon; one takes about a second.
    settings = MirrorSettings(lease_seconds=30.0)
    owner = f"mirror-{os.getpid()}"
    Mirror(database, connect, owner, settings, on_overrun=lambda: os._exit(75)).run(stop, wait)


if __name__ == "__main__":
    _mirror(*sys.argv[1:])
