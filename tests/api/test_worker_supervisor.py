from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from api.settings import Settings
from api.worker_supervisor import WorkerSupervisor, child_command, child_environment
from tests.api.served import alive, eventually


def test_a_folder_of_the_same_name_does_not_take_the_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    command = [*child_command("api.settings")]
    answer = subprocess.run(
        command, cwd=tmp_path, env=child_environment(), capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def test_children_run_in_this_interpreter() -> None:
    command = child_command("some.module", "--flag")
    assert command == [sys.executable, "-P", "-m", "some.module", "--flag"]


def test_a_worker_is_started_restarted_and_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    settings = Settings(database_url=url, log_level="error", tracking_uri="off")
    supervisor = WorkerSupervisor(settings)
    assert supervisor.process_id is None
    supervisor.start()
    eventually(lambda: supervisor.process_id is not None)
    first = supervisor.process_id
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: supervisor.process_id not in (None, first))
    second = supervisor.process_id
    assert second is not None
    supervisor.stop(60.0)
    assert not alive(second)
    assert supervisor.process_id is None


def test_stopping_what_never_started_is_fine(tmp_path: Path) -> None:
    WorkerSupervisor(Settings(database_url=f"sqlite:///{tmp_path}/store.db")).stop(1.0)
