"""``serve`` as people run it: real processes, real signals."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.api.served import Served, alive, environment, eventually, run_command

KEY = {
    "target_model": "target",
    "target_revision": "1",
    "target_quantization": "none",
    "draft_model": "draft",
    "draft_revision": "1",
    "draft_quantization": "none",
    "gamma": 2,
    "slot_convention": "anchor_excluded",
}


def worker_of(service: Served) -> int:
    """Process id of the worker, once there is one."""
    eventually(lambda: len(service.children()) == 1)
    return service.children()[0]


@pytest.mark.slow
def test_sigterm_ends_api_and_worker_in_order(tmp_path: Path) -> None:
    with Served("--data", "data", folder=tmp_path) as service:
        service.listening()
        assert service.lines[0] == f"Listening on {service.url}\n"
        assert f"Database     sqlite:///{tmp_path}/data/dspark-calib.db\n" in service.lines
        assert f"API docs     {service.url}/docs\n" in service.lines
        worker = worker_of(service)
        service.http.put(f"{service.url}/v1/drafters/d", json={"key": KEY}).raise_for_status()
        refused = service.job("d")
        assert (refused["status"], refused["result"]["refusal"]) == ("refused", "no_rows")
        assert service.stop() == 0
        assert not alive(worker)
    assert (tmp_path / "data" / "dspark-calib.db").exists()


@pytest.mark.slow
def test_one_ctrl_c_stops_both(tmp_path: Path) -> None:
    with Served("--data", "data", folder=tmp_path) as service:
        worker = worker_of(service.listening())
        eventually(lambda: "worker" in service.log and "started" in service.log)
        service.interrupt()
        assert service.ended() == 0
        assert not alive(worker)
        assert "Traceback" not in service.log


@pytest.mark.slow
def test_at_worst_sigterm_takes_the_shutdown_time_once(tmp_path: Path) -> None:
    """A request that never ends, a locked database and a frozen worker, all at once.

    API and worker each may use the whole time; one after the other it would be twice as long.
    """
    seconds = 8
    with Served("--data", "data", "--shutdown-seconds", str(seconds), folder=tmp_path) as service:
        worker = worker_of(service.listening())
        eventually(lambda: "worker" in service.log and "started" in service.log)
        place = f"{service.url}/v1/drafters/d"
        service.http.put(place, json={"key": KEY}).raise_for_status()
        host, _, port = service.url.removeprefix("http://").partition(":")
        head = "POST /v1/drafters/d/telemetry HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        with (
            socket.create_connection((host, int(port))) as endless,
            closing(sqlite3.connect(tmp_path / "data" / "dspark-calib.db")) as lock,
        ):
            endless.sendall(head.encode())
            service.http.get(f"{service.url}/healthz").raise_for_status()  # it has been read by now
            lock.execute("BEGIN IMMEDIATE")
            os.kill(worker, signal.SIGSTOP)
            began = time.monotonic()
            service.stop()
            eventually(lambda: not alive(worker))
            assert time.monotonic() - began < seconds + 5.0
            assert "did not leave in time" in service.log


@pytest.mark.slow
def test_the_worker_leaves_when_the_service_is_killed(tmp_path: Path) -> None:
    with Served("--data", "data", folder=tmp_path) as service:
        worker = worker_of(service.listening())
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(30.0)
        eventually(lambda: not alive(worker))


@pytest.mark.slow
def test_a_worker_that_dies_is_started_again(tmp_path: Path) -> None:
    with Served("--data", "data", folder=tmp_path) as service:
        first = worker_of(service.listening())
        os.kill(first, signal.SIGKILL)
        eventually(lambda: service.children() not in ([], [first]))
        assert "the worker ended" in service.log
        service.http.put(f"{service.url}/v1/drafters/d", json={"key": KEY}).raise_for_status()
        assert service.job("d")["status"] == "refused"
        assert service.stop() == 0


@pytest.mark.slow
def test_roles_apart_meet_in_the_database(tmp_path: Path) -> None:
    with (
        Served("--data", "data", "--role", "api", folder=tmp_path) as api,
        Served("--data", "data", "--role", "worker", folder=tmp_path) as worker,
    ):
        api.listening()
        assert api.children() == []
        assert f"Worker of sqlite:///{tmp_path}/data" in worker.wait_for("Worker of")
        api.http.put(f"{api.url}/v1/drafters/d", json={"key": KEY}).raise_for_status()
        assert api.job("d")["status"] == "refused"
        assert (worker.stop(), api.stop()) == (0, 0)


@pytest.mark.slow
def test_r61_nothing_but_nan_is_a_data_fault_and_no_crash(tmp_path: Path) -> None:
    body = (
        b'{"gamma": 2, "rows": [{"confidence_logits": [NaN, NaN], "verified": 2, "accepted": 1}]}'
    )
    with Served("--data", "data", folder=tmp_path) as service:
        service.listening()
        place = f"{service.url}/v1/drafters/d"
        service.http.put(place, json={"key": KEY}).raise_for_status()
        sent = service.http.post(
            f"{place}/telemetry", content=body, headers={"Content-Type": "application/json"}
        )
        assert sent.status_code // 100 == 4
        assert sent.headers["Content-Type"] == "application/problem+json"
        found = service.job("d")
        assert (found["status"], found["result"]["refusal"]) == ("refused", "no_rows")
        asked = {"drafter": "d", "state": "open"}
        (event,) = service.http.get(f"{service.url}/v1/events", params=asked).json()["events"]
        assert (event["kind"], event["severity"]) == ("data_quality", "warning")
        assert service.http.get(f"{service.url}/readyz").status_code == 200
        assert len(service.children()) == 1
        assert service.stop() == 0


@pytest.mark.slow
def test_starting_the_service_loads_nothing_heavy(tmp_path: Path) -> None:
    """What ``serve`` imports in the process that answers polls."""
    script = (
        "import sys, api.cli, api.server, api.service_process, api.worker_supervisor\n"
        "heavy = {'matplotlib', 'mlflow', 'netcal', 'pandas', 'scipy', 'sklearn', 'torch'}\n"
        "heavy |= {'alembic', 'jinja2', 'pyarrow.parquet', 'rich', 'watchfiles'}\n"
        "ours = {'monitoring.recalibration', 'monitoring.worker', 'monitoring.windows'}\n"
        "print(sorted((heavy | ours) & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    answer = run_command("serve", "--data", "file/data", "--port", "0", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: folder ")
    assert "cannot be made" in answer.stderr


@pytest.mark.slow
def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = run_command("serve", "--data", "data", "--port", port, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"error: port: got {port}; ")
    assert "Traceback" not in answer.stderr
    assert not (tmp_path / "data").exists()  # nothing was begun


@pytest.mark.slow
def test_an_open_host_needs_tokens(tmp_path: Path) -> None:
    answer = run_command(
        "serve", "--data", "data", "--host", "0.0.0.0", "--port", "0", cwd=tmp_path
    )
    assert answer.returncode == 2
    assert answer.stdout == ""  # it never said that it listens
    assert "host: got '0.0.0.0'" in answer.stderr
    assert "token create" in answer.stderr


@pytest.mark.slow
def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    from monitoring.store.database import Database
    from monitoring.store.migrate import upgrade

    url = f"sqlite:///{tmp_path}/newer.db"
    database = Database.open(url)
    upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'from-the-future'")
    database.close()
    for role in ("api", "worker"):
        answer = run_command(
            "serve", "--role", role, "--database-url", url, "--port", "0", cwd=tmp_path
        )
        assert answer.returncode == 2
        assert "another release" in answer.stderr
        assert "Traceback" not in answer.stderr
