"""What SGLang's plugin costs a decode step: the same call with and without it, side by side.

    python benchmarks/bench_engine_plugin.py [--steps 400] [--repeats 15] [--out result.json]

One process holds two engines that step as SGLang does (tests/client/plugins/sglang/host.py). What
is timed is the call that ends a verify step: once as the hook registry makes it without a plugin,
once with the plugin attached while its poller and uploader work against a service in another
process, which publishes every ten seconds. Both are timed in turn, many short repeats of each.

* rank 0: telemetry of every row, a broadcast of one rank every 32 steps
* other rank: no telemetry
* paced: rank 0 at 100 steps a second, time of the clock on the wall: what the threads of poller
  and uploader take from the scheduler's is in it
* unread: rank 0 while the device never comes to its copies: steps are left out and counted

Microseconds of the scheduler's thread (CPU time, median over repeats) for a whole step, and for the
slowest single step of the clock on the wall. There is no CUDA device here: what a device would add
is the launch of four copies; what the plugin calls is listed under ``operations``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "client"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench_client import publishing
from benchmarks.measurement import machine_facts
from dspark_calib_client import __version__ as client_version
from tests.client.plugins.sglang.host import (
    Engine,
    Group,
    Request,
    environment_of,
    plain_blocks,
    step_arguments,
)
from tests.client.stand_in_service import DRAFTER, KEY, StandInService

GAMMA = 7
BATCHES = (1, 16, 64, 256)
PER_SECOND = 100


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


class Never:
    """An event of a device that is far behind."""

    def record(self) -> None:
        """Behind the copies."""

    def query(self) -> bool:
        return False


def plain(**_: Any) -> None:
    """The observers without a plugin: what the hook's wrapper calls."""


def engine_of(url: str, rank: int) -> Engine:
    engine = Engine(GAMMA, group=Group(rank, 1))
    settings = environment_of(url, DRAFTER, KEY, BROADCAST_STEPS="32", INTERVAL="1", WAIT="30")
    if engine.start(settings) is None:
        raise SystemExit("the plugin stepped aside")
    return engine


def step_of(rows: int) -> dict[str, Any]:
    reqs = [Request(f"r{index}") for index in range(rows)]
    return step_arguments("compact", reqs, plain_blocks(rows, GAMMA), GAMMA)


def timed(call: Any, step: dict[str, Any], steps: int, count: list[int]) -> tuple[float, float]:
    """CPU microseconds per call, and the slowest on the wall."""
    slowest = 0
    began = time.thread_time_ns()
    for _ in range(steps):
        count[0] += 1
        start = time.perf_counter_ns()
        call(**step, forward_ct=count[0])
        slowest = max(slowest, time.perf_counter_ns() - start)
    return (time.thread_time_ns() - began) / steps / 1e3, slowest / 1e3


def compare(engine: Engine, rows: int, steps: int, repeats: int) -> dict[str, float]:
    """Both ways in turn, so that what else the machine does meets both."""
    step, count = step_of(rows), [engine.steps]
    without, with_plugin, slowest = [], [], []
    with torch.inference_mode():
        timed(engine.observe, step, 20, count)
        for _ in range(repeats):
            without.append(timed(plain, step, steps, [0])[0])
            cost, longest = timed(engine.observe, step, steps, count)
            with_plugin.append(cost)
            slowest.append(longest)
    engine.steps = count[0]
    added = [after - before for before, after in zip(without, with_plugin, strict=True)]
    return {
        "without": round(statistics.median(without), 2),
        "with": round(statistics.median(with_plugin), 2),
        "added": round(statistics.median(added), 2),
        "slowest step": round(statistics.median(slowest), 1),
    }


def paced(engine: Engine, rows: int, seconds: float, per_second: int) -> dict[str, float]:
    """Steps at an engine's pace: how long the call takes on the wall, both ways in turn."""
    step = step_of(rows)
    waits: dict[str, list[int]] = {"without": [], "with": []}
    ends = time.monotonic() + seconds
    with torch.inference_mode():
        while time.monotonic() < ends:
            engine.steps += 1
            for name, call in (("without", plain), ("with", engine.observe)):
                began = time.perf_counter_ns()
                call(**step, forward_ct=engine.steps)
                waits[name].append(time.perf_counter_ns() - began)
            time.sleep(1.0 / per_second)
    found = {}
    for name, nanoseconds in waits.items():
        ordered = sorted(nanoseconds)
        found[f"{name} p50"] = round(ordered[len(ordered) // 2] / 1e3, 1)
        found[f"{name} p99"] = round(ordered[len(ordered) * 99 // 100] / 1e3, 1)
    return found


def serve() -> None:
    """In a process of its own: what a service does must not be taken for the plugin's cost."""
    with StandInService() as service, publishing(service, seconds=10.0):
        print(service.url, flush=True)
        sys.stdin.read()


@contextmanager
def service_process() -> Iterator[str]:
    """The address of a local service."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the service has no pipes")
        yield process.stdout.readline().strip()
        process.stdin.close()


def main() -> None:
    logging.getLogger("dspark_calib_client").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with service_process() as url:
        engine, other, behind = (engine_of(url, rank) for rank in (0, 1, 0))
        for slot in behind.attachment._copies._free:
            slot.event = Never()
        for rows in (16, 64):
            found[f"paced, {rows} requests"] = paced(engine, rows, 10.0, PER_SECOND)
        for rows in BATCHES:
            shared = (rows, arguments.steps, arguments.repeats)
            found[f"rank 0, {rows} requests"] = compare(engine, *shared)
        found["other rank, 64 requests"] = compare(other, 64, arguments.steps, arguments.repeats)
        found["unread, 64 requests"] = compare(behind, 64, arguments.steps, arguments.repeats)
        step = step_of(64)
        with Operations() as operations, torch.inference_mode():
            engine.observe(**step, forward_ct=engine.steps + 1)
        status = engine.attachment.status()
        left_out = behind.attachment.status()["steps_left_out"]
        for one in (engine, behind):
            one.attachment._client.stop(2.0)
    for name, values in found.items():
        print(f"{name:24s}" + "".join(f"  {key} {value:9,.1f}" for key, value in values.items()))
    result = {
        "machine": machine_facts(),
        "client": client_version,
        "microseconds": found,
        "operations": dict(operations.found),
        "rows": status["rows"],
        "rows dropped": status["client"]["rows_dropped"],
        "unread steps left out": left_out,
    }
    print(json.dumps({name: result[name] for name in list(result)[3:]}))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
