"""After a fork the child's client starts cleanly, and the parent's goes on undisturbed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from dspark_calib_client import forking
from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, StandInService

ROOT = Path(__file__).resolve().parent.parent.parent

PARENT = """
import os, sys, time, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # forking with threads
from dspark_calib_client import CalibrationClient, State, TelemetryOptions

url, drafter, gamma, key = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
client = CalibrationClient(
    url, drafter, gamma, key, engine_id="engine-0", interval=0.05, wait=0, timeout=60.0,
    start_delay=0.0, telemetry=TelemetryOptions(batch_seconds=0.2, body="json"),
)

def until(met, seconds=60.0):
    ends = time.monotonic() + seconds
    while not met():
        if time.monotonic() > ends:
            print("too late", client.metrics(), flush=True)
            os._exit(3)
        time.sleep(0.005)

client.start()
until(lambda: client.current().state is State.FRESH)
for step in range(5):
    client.observe([0.1] * gamma, 1, 1, request="parent", step=step)
child = os.fork()
if child == 0:
    assert client.metrics()["rows_queued"] == 0, "the parent sends what was queued"
    assert client.metrics()["polls"] == 0 or client.metrics()["running"] == 1
    client.observe([0.1] * gamma, 1, 1, request="child", step=0)
    assert client.metrics()["running"] == 1
    polls = client.metrics()["polls"]
    until(lambda: client.metrics()["polls"] >= polls + 3)
    until(lambda: client.metrics()["rows_delivered"] == 1)
    assert client.current().state is State.FRESH
    assert client.stop(60.0)
    os._exit(0)
polls = client.metrics()["polls"]
until(lambda: client.metrics()["polls"] >= polls + 3)
until(lambda: client.metrics()["rows_delivered"] == 5)
_, status = os.waitpid(child, 0)
assert client.stop(60.0)
print("child", os.waitstatus_to_exitcode(status), flush=True)
"""


def test_both_go_on(service: StandInService) -> None:
    command = [sys.executable, "-c", PARENT, service.url, DRAFTER, str(GAMMA), KEY]
    found = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (found.stdout, found.returncode) == ("child 0\n", 0), found.stdout + found.stderr
    requests = sorted(row["request"] for row in service.rows)
    assert requests == ["child"] + ["parent"] * 5  # nothing lost, nothing twice


def test_a_child_that_never_uses_it_never_polls(service: StandInService) -> None:
    script = PARENT.partition("for step in range(5)")[0] + (
        "polls = client.metrics()['polls']\n"
        "client.stop(60.0)\n"
        "client.start()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import threading\n"
        "    os._exit(threading.active_count())\n"
        "_, status = os.waitpid(child, 0)\n"
        "client.stop(60.0)\n"
        "print('threads', os.waitstatus_to_exitcode(status))\n"
    )
    command = [sys.executable, "-c", script, service.url, DRAFTER, str(GAMMA), KEY]
    found = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "client")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (found.stdout, found.returncode) == ("threads 1\n", 0), found.stderr


def test_what_is_gone_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Thing:
        def __init__(self, name: str) -> None:
            self.name = name

        def reset_after_fork(self) -> None:
            calls.append(self.name)

    monkeypatch.setattr(forking, "_OBJECTS", weakref.WeakSet())
    kept, gone = Thing("kept"), Thing("gone")
    forking.reset_in_children(kept)
    forking.reset_in_children(gone)
    del gone
    gc.collect()
    forking._reset_all()
    assert calls == ["kept"]
