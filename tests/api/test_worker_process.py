"""The worker's process: how it is told what to do, and all the ways in which it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from api.settings import Settings
from api.worker_supervisor import child_command, child_environment
from monitoring.store.database import Database
from monitoring.store.jobs import get_job
from monitoring.store.migrate import is_current, upgrade
from tests.api.served import eventually
from tests.monitoring.worker_support import ordered, read, registered, stored
from tests.support.telemetry import synthetic_records

LEAVES_SECONDS = 60.0


class WorkerProcess:
    """A worker with a log; its input is the test's to end."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._log = folder / "worker.log"
        values = {"log_format": "json", "shutdown_seconds": 60.0, "tracking_uri": "off", **settings}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                child_command("api.worker_process"),
                cwd=folder,
                env=child_environment() | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdin is not None
        line = Settings(**values).model_dump_json().encode() + b"\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def events(self) -> list[dict[str, Any]]:
        """Log entries so far; each must be JSON. One that is being written is left out."""
        whole, _, _ = self._log.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def wait_for(self, text: str) -> None:
        eventually(lambda: any(text in str(entry["event"]) for entry in self.events()))

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LEAVES_SECONDS)
        if self.process.stdin is not None:
            self.process.stdin.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.mark.slow
def test_it_makes_the_tables_and_leaves_with_its_parent(tmp_path: Path, url: str) -> None:
    """The end of its input stands for the parent's, however that came."""
    with WorkerProcess(tmp_path, database_url=url) as worker:
        worker.wait_for("started")
        database = Database.open(url)
        assert is_current(database)
        database.close()
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        assert worker.process.wait(LEAVES_SECONDS) == 0
        worker.wait_for("stopped")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_in_order(tmp_path: Path, url: str, number: signal.Signals) -> None:
    with WorkerProcess(tmp_path, database_url=url) as worker:
        worker.wait_for("started")
        worker.process.send_signal(number)
        assert worker.process.wait(LEAVES_SECONDS) == 0


def test_the_address_is_in_no_list_of_processes(tmp_path: Path, url: str) -> None:
    with WorkerProcess(tmp_path, database_url=url) as worker:
        words = Path(f"/proc/{worker.process.pid}/cmdline").read_bytes()
        assert b"store.db" not in words


@pytest.mark.slow
def test_sigterm_in_the_middle_of_a_fit_gives_the_job_back(tmp_path: Path, url: str) -> None:
    """Enough rows that the fit outlasts the two seconds of grace; then the job waits again."""
    database = Database.open(url)
    upgrade(database)
    registered(database, 7)
    stored(database, synthetic_records(150_000, prompts=400), batches=4)
    job = ordered(database)
    with WorkerProcess(tmp_path, database_url=url, shutdown_seconds=6.0) as worker:
        worker.wait_for(f"job {job.id} (recalibration of drafter) started")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(LEAVES_SECONDS) == 0
    found = read(database, get_job, job.id)
    assert (found.status, found.attempts, found.lease_owner) == ("queued", 0, None)
    database.close()


@pytest.mark.slow
def test_without_a_database_it_waits_and_still_leaves(tmp_path: Path) -> None:
    unreachable = "postgresql://nobody@127.0.0.1:9/none"
    with WorkerProcess(tmp_path, database_url=unreachable, shutdown_seconds=20.0) as worker:
        worker.wait_for("no database yet")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(LEAVES_SECONDS) in (0, 1)


@pytest.mark.slow
def test_polls_go_before_fits(tmp_path: Path, url: str) -> None:
    with WorkerProcess(tmp_path, database_url=url) as worker:
        worker.wait_for("started")
        mine = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, worker.process.pid) == min(mine + 5, 19)


def test_settings_reach_the_loop() -> None:
    from api.worker_process import _loop_settings

    given = {"exploration_share": 0.001, "exploration_share_on_warning": 0.002}
    found = _loop_settings(Settings(**given, closed_loop="watch", drift_design_effect=1.5))
    assert found is not None
    assert found.to_dict() | given == found.to_dict()
    assert (found.automatic, found.design_effect) == (False, 1.5)
    assert _loop_settings(Settings(closed_loop="off")) is None
