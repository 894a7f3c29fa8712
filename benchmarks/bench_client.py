"""What the engine client costs its caller, beside the least that Python can do.

    python benchmarks/bench_client.py [--calls 2000] [--repeats 100] [--out result.json]

* current: ``client.current()`` beside reading one attribute, while its poller runs against a local
  service that publishes ten times a second.
* observe: ``client.observe(...)`` of a row of gamma 7 beside ``deque.append`` of a tuple of its
  values, while its uploader sends what it can; a full queue is the worst case and comes on its own.
* record_rows: per row, for steps of 64 rows as NumPy arrays, beside copying the logits alone.
* slowest: the longest single ``current`` and ``observe`` of a run beside a server that accepts and
  never answers; what another process took from the machine is in it too.

Nanoseconds of the caller's thread (CPU time, the least of many short repeats), and for ``slowest``
of the clock on the wall.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "client"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.measurement import machine_facts
from dspark_calib_client import CalibrationClient, TelemetryOptions
from dspark_calib_client import __version__ as client_version
from tests.client.misbehaving import black_hole, misbehaving
from tests.client.stand_in_service import DRAFTER, KEY, StandInService

GAMMA = 7
LOGITS = [0.5, -0.25, 1.5, 2.25, -3.0, 0.125, 0.75]
STEP_ROWS = 64


class Holder:
    """The least that holds temperatures."""

    def __init__(self) -> None:
        self.temperatures = (1.0,) * GAMMA


def nanoseconds(call: Callable[[], object], calls: int, repeats: int) -> float:
    """CPU time of one call in a plain loop without the loop's own cost; the least of repeats."""
    empty, full = [], []
    for _ in range(repeats):
        began = time.thread_time_ns()
        for _ in range(calls):
            pass
        middle = time.thread_time_ns()
        for _ in range(calls):
            call()
        empty.append(middle - began)
        full.append(time.thread_time_ns() - middle)
    return (min(full) - min(empty)) / calls


@contextmanager
def running_client(url: str, **options: Any) -> Iterator[CalibrationClient]:
    client = CalibrationClient(
        url,
        DRAFTER,
        GAMMA,
        KEY,
        engine_id="bench",
        interval=1.0,
        wait=30,
        start_delay=0.0,
        telemetry=TelemetryOptions(**options),
    )
    client.start()
    yield client
    client.stop(2.0)


@contextmanager
def publishing(service: StandInService, seconds: float = 0.1) -> Iterator[None]:
    over = threading.Event()

    def publish() -> None:
        number = 0
        while not over.wait(seconds):
            number += 1
            service.publish([1.0 + number / 1e6] * GAMMA, gamma=GAMMA)

    thread = threading.Thread(target=publish)
    service.publish([1.0] * GAMMA, gamma=GAMMA)
    thread.start()
    yield
    over.set()
    thread.join()


def bench_current(calls: int, repeats: int) -> dict[str, float]:
    with StandInService() as service, publishing(service), running_client(service.url) as client:
        until(lambda: client.current().publication > 1)
        holder = Holder()
        return {
            "attribute": nanoseconds(lambda: holder.temperatures, calls, repeats),
            "current": nanoseconds(client.current, calls, repeats),
        }


def bench_observe(calls: int, repeats: int) -> dict[str, float]:
    rows: deque[tuple[Any, ...]] = deque(maxlen=65_536)
    with StandInService() as service, publishing(service):
        with running_client(service.url, queue_rows=10**7, queue_bytes=2**34) as client:
            until(lambda: client.current().publication > 1)
            found = {
                "deque append": nanoseconds(
                    lambda: rows.append((tuple(LOGITS), 7, 3, "r1", 12)), calls, repeats
                ),
                "observe": nanoseconds(
                    lambda: client.observe(LOGITS, 7, 3, request="r1", step=12), calls, repeats
                ),
            }
        with running_client(service.url, share=0.5) as client:
            found["observe, sampled"] = nanoseconds(
                lambda: client.observe(LOGITS, 7, 3, request="r1", step=12), calls, repeats
            )
    with misbehaving(black_hole) as url, running_client(url, queue_rows=1000) as client:
        found["observe, queue full"] = nanoseconds(
            lambda: client.observe(LOGITS, 7, 3, request="r1", step=12), calls, repeats
        )
    return found


def bench_record_rows(calls: int, repeats: int) -> dict[str, float]:
    steps = max(1, calls // STEP_ROWS)
    logits = np.zeros((STEP_ROWS, GAMMA), np.float32)
    block = {
        "confidence_logits": logits,
        "verified": np.full(STEP_ROWS, 7),
        "accepted": np.zeros(STEP_ROWS, np.int64),
        "request": [f"r{index}" for index in range(STEP_ROWS)],
    }
    with StandInService() as service, publishing(service), running_client(service.url) as client:
        until(lambda: client.current().publication > 1)
        copying = nanoseconds(logits.copy, steps, repeats)
        recording = nanoseconds(lambda: client.record_rows(block), steps, repeats)
    return {"copy of the logits": copying / STEP_ROWS, "record_rows": recording / STEP_ROWS}


def bench_slowest(seconds: float) -> dict[str, float]:
    """Nanoseconds of the slowest calls, with a pause of a millisecond between steps."""
    slowest = {"current": 0, "observe": 0}
    with misbehaving(black_hole) as url, running_client(url, batch_seconds=0.1) as client:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.perf_counter_ns()
            client.current()
            middle = time.perf_counter_ns()
            client.observe(LOGITS, 7, 3, request="r1", step=12)
            after = time.perf_counter_ns()
            slowest["current"] = max(slowest["current"], middle - began)
            slowest["observe"] = max(slowest["observe"], after - middle)
            time.sleep(0.001)
    return {f"slowest {name}": float(value) for name, value in slowest.items()}


def until(met: Callable[[], bool], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not met():
        if time.monotonic() > ends:
            raise SystemExit("the client did not reach its service")
        time.sleep(0.01)


def main() -> None:
    logging.getLogger("dspark_calib_client").setLevel(logging.ERROR)  # bad servers are meant here
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0, help="of the slowest-call run")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found = {
        **bench_current(arguments.calls, arguments.repeats),
        **bench_observe(arguments.calls, arguments.repeats),
        **bench_record_rows(arguments.calls, arguments.repeats),
        **bench_slowest(arguments.seconds),
    }
    for name, value in found.items():
        print(f"{name:22s} {value:12,.0f} ns")
    rounded = {name: round(value, 1) for name, value in found.items()}
    result = {"machine": machine_facts(), "client": client_version, "nanoseconds": rounded}
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
