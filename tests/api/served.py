"""``dspark-calib serve`` as a process of its own, with its children, for tests."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

ROOT = Path(__file__).resolve().parents[2]
# It takes three seconds on a free machine.
START_SECONDS = 120.0
CALL_SECONDS = 60.0
ENTRY = "from api.cli import main; main()"


def environment(tracking: str = "off", closed_loop: str = "off") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "DSPARK_CALIB" not in name}
    kept["DSPARK_CALIB_TRACKING_URI"] = tracking  # MLflow's own store outlasts most tests
    kept["DSPARK_CALIB_CLOSED_LOOP"] = closed_loop  # most tests want no refits unasked
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}


def run_command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-c", ENTRY, *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )


class Served:
    """A service with its children, listening when the constructor returns.

    Args:
        *arguments: of ``serve``; ``--port 0`` is given already.
        folder: working directory, where its log is kept as well.
        tracking: where it mirrors to.
        closed_loop: whether it watches telemetry, and acts.

    Attributes:
        url: its address.
        lines: standard output so far.
        http: for calls.
    """

    def __init__(
        self, *arguments: str, folder: Path, tracking: str = "off", closed_loop: str = "off"
    ) -> None:
        self.url = ""
        self.lines: list[str] = []
        # A machine that runs other tests may take its time.
        self.http = httpx.Client(timeout=CALL_SECONDS)
        self._log = folder / f"serve-{time.monotonic_ns()}.log"
        self._said: queue.Queue[str | None] = queue.Queue()
        # Time to end in order, which a busy machine may need; who gives it again overrules this.
        patience = ("--shutdown-seconds", "60")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, "serve", "--port", "0", *patience, *arguments],
                cwd=folder,
                env=environment(tracking, closed_loop),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # so that its whole group can get Ctrl-C
            )
        threading.Thread(target=self._read, daemon=True).start()

    def listening(self) -> Self:
        """Wait until it has said where everything is."""
        self.wait_for("API docs")
        return self

    @property
    def log(self) -> str:
        """Standard error so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, text: str, seconds: float = START_SECONDS) -> str:
        """The next line of standard output that holds ``text``."""
        ends = time.monotonic() + seconds
        while True:
            try:
                line = self._said.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                raise AssertionError(f"never said {text!r}: {self.lines}\n{self.log}")
            if line.startswith("Listening on "):
                self.url = line.removeprefix("Listening on ").strip()
            if text in line:
                return line

    def children(self) -> list[int]:
        """Process ids of its living children."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        found = [int(pid) for task in tasks for pid in task.read_text().split()]
        return [pid for pid in found if alive(pid)]

    def interrupt(self) -> None:
        """Ctrl-C: the whole process group gets SIGINT."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, seconds: float = 120.0) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"has not ended\n{self.lines}\n{self.log}") from None

    def stop(self, seconds: float = 120.0) -> int:
        """SIGTERM to the main process alone; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(seconds)

    def kill_all(self) -> None:
        """``kill -9`` of it and of all its children at once."""
        doomed = [self.process.pid, *self.children()]
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30.0)

    def job(self, drafter: str, **options: Any) -> dict[str, Any]:
        """What became of a recalibration, ordered here."""
        ordered = self.http.post(f"{self.url}/v1/drafters/{drafter}/recalibrations", json=options)
        ordered.raise_for_status()
        place = ordered.headers["Location"]
        found: dict[str, Any] = {}

        def over() -> bool:
            found.update(self.http.get(f"{self.url}{place}").raise_for_status().json())
            return found["status"] not in ("queued", "running")

        eventually(over)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.http.close()
        self.kill_all()

    def _read(self) -> None:
        stream = self.process.stdout
        if stream is None:
            return
        with stream:
            for line in stream:
                self.lines.append(line)
                self._said.put(line)
        self._said.put(None)


def alive(pid: int) -> bool:
    """Whether the process runs and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def eventually(question: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Ask until the answer is yes."""
    pause = threading.Event()
    ends = time.monotonic() + seconds
    while not question():
        if pause.wait(0.05) or time.monotonic() > ends:
            raise AssertionError("it never came true")
