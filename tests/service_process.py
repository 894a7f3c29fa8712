"""A real service process for tests: ``python -m api.server`` on a free port.

::

    with ServiceProcess(f"sqlite:///{tmp_path}/store.db") as service:
        httpx.get(f"{service.url}/healthz")
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

__all__ = ["ServiceFailedError", "ServiceProcess"]

ROOT = Path(__file__).resolve().parent.parent
# Starting takes two seconds; a machine that runs other tests may take many more.
START_SECONDS = 90.0


class ServiceFailedError(Exception):
    """The process did not start or did not end as it should; the message holds its log."""


class ServiceProcess:
    """A service, started and ready when the constructor returns.

    Args:
        database_url: where it keeps everything; the same again after a restart.
        start_seconds: how long it may take to be ready.
        environment: further variables, such as ``{"TMPDIR": …}``.
        **settings: fields of :class:`api.settings.Settings`; ``port`` to get the same one again.
            ``log_level`` must let info through: the log says where it listens. The closed loop
            is off unless ``closed_loop`` says otherwise.

    Attributes:
        url: address without a slash at the end.
        process: the process.
    """

    def __init__(
        self,
        database_url: str,
        *,
        start_seconds: float = START_SECONDS,
        environment: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        if settings.get("log_level") in ("warning", "error"):
            raise ValueError("log_level must let info through")
        self.url = ""
        self._lines: list[str] = []
        self._listening = threading.Event()
        # Tests of other things must not meet refits that nobody asked for.
        loop = {"closed_loop": "off"}
        values = {"database_url": database_url, "port": 0, "role": "api", **loop, **settings}
        variables = {
            name: value for name, value in os.environ.items() if "DSPARK_CALIB" not in name
        }
        variables |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        variables |= {f"DSPARK_CALIB_{name.upper()}": str(value) for name, value in values.items()}
        variables |= {"DSPARK_CALIB_LOG_FORMAT": "json", **(environment or {})}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "api.server"],
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="service log", daemon=True)
        self._reader.start()
        try:
            self._wait_until_ready(time.monotonic() + start_seconds)
        except BaseException:
            self.kill()
            raise

    @property
    def log(self) -> str:
        """What the process has written so far."""
        return "".join(self._lines)

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.url.rpartition(":")[2])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log entries with this event, as they were written."""
        return [entry for entry in map(_entry, list(self._lines)) if entry.get("event") == name]

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does; may be called again."""
        self.process.kill()
        self._ended(10.0)

    def stop(self, seconds: float = 60.0) -> int:
        """Ask it to end (SIGTERM); its exit code.

        Raises:
            ServiceFailedError: it has not ended after ``seconds``.
        """
        self.process.send_signal(signal.SIGTERM)
        return self._ended(seconds)

    def memory_bytes(self) -> int:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """CPU time that the process has used, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        user, system = fields.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def _read(self) -> None:
        stream = self.process.stderr
        if stream is None:
            return
        with stream:
            for line in stream:
                self._lines.append(line)
                entry = _entry(line)
                if entry.get("event") == "listening":
                    self.url = entry["url"]
                    self._listening.set()
        self._listening.set()  # ended: nobody need wait any longer

    def _wait_until_ready(self, deadline: float) -> None:
        if not self._listening.wait(deadline - time.monotonic()) or not self.url:
            raise self._failure("did not listen")
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # it listens before it answers
            time.sleep(0.05)
        raise self._failure("was not ready in time")

    def _ended(self, seconds: float) -> int:
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            failure = self._failure(f"has not ended after {seconds:g} s")
            self.process.kill()
            self.process.wait(10.0)
            raise failure from None
        self._reader.join(10.0)
        return code

    def _failure(self, what: str) -> ServiceFailedError:
        return ServiceFailedError(f"the service {what}; its log:\n{self.log}")


def _entry(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
