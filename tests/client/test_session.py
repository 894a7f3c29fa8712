"""Threads are daemons: an interpreter that leaves is never held, started or stopped or neither."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dspark_calib_client import CalibrationClient
from tests.client import misbehaving as bad
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY

ROOT = Path(__file__).resolve().parent.parent.parent

SCRIPT = """
import sys, time
from dspark_calib_client import CalibrationClient, TelemetryOptions
url, drafter, gamma, ending = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
client = CalibrationClient(
    url, drafter, gamma, engine_id="engine-0", interval=0.05, wait=30, timeout=60.0,
    start_delay=0.0, max_backoff=0.1,
    telemetry=TelemetryOptions(batch_seconds=0.01, body="json"),
)
client.start()
for step in range(100):
    client.observe([0.1] * gamma, 1, 1, step=step)
time.sleep(0.3)
if ending == "stop":
    client.stop(0.5)
if ending == "raise":
    raise SystemExit(7)
print("leaving", flush=True)
"""


@pytest.mark.parametrize(
    ("behaviour", "ending", "code"),
    [
        (bad.black_hole, "leave", 0),
        (bad.drip, "raise", 7),
        (bad.hang_up, "leave", 0),
        (bad.black_hole, "stop", 0),
    ],
)
def test_an_interpreter_leaves_at_once(behaviour: bad.Behaviour, ending: str, code: int) -> None:
    with bad.misbehaving(behaviour) as url:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, url, DRAFTER, str(GAMMA), ending],
            env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if ending != "raise":
                assert process.stdout is not None
                assert process.stdout.readline() == "leaving\n"
                began = time.monotonic()
                process.wait(60.0)
                assert time.monotonic() - began < 25.0  # the servers would hold it for 30
            _, errors = process.communicate(timeout=60.0)
        finally:
            process.kill()
    assert process.returncode == code
    assert "Traceback" not in errors
    assert "Exception" not in errors


def test_both_threads_are_daemons() -> None:
    with bad.dead_port() as url:
        client = CalibrationClient(url, DRAFTER, GAMMA, KEY, engine_id="e")
        before = set(threading.enumerate())
        client.start()
        new = set(threading.enumerate()) - before
        mine = [thread for thread in new if thread.name.startswith("dspark-calib")]
        assert len(mine) == 2
        assert all(thread.daemon for thread in mine)
        client.stop(2.0)


def test_a_hanging_disk_delays_a_start_by_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def hang(*args: Any, **options: Any) -> int:
        release.wait(30.0)
        raise OSError("gone")

    with bad.dead_port() as url:
        client = CalibrationClient(
            url, DRAFTER, GAMMA, KEY, engine_id="e", state_file=tmp_path / "f", baked_in=[2.0] * 3
        )
        with monkeypatch.context() as patch:
            patch.setattr("dspark_calib_client.last_known_good.os.open", hang)
            began = time.monotonic()
            assert client.start()
            assert time.monotonic() - began < 20.0  # the disk hangs for 30
            assert client.current().values == (2.0, 2.0, 2.0)
            release.set()
            client.stop(5.0)
