"""What the plugins cost a decode step: the same call with and without one, side by side.

    python benchmarks/bench_engine_plugin.py [--steps 400] [--repeats 15] [--out result.json]

One process holds engines that step as SGLang and vLLM do (tests/client/plugins/*/host.py). What is
timed is the call that ends a verify step: once as the hook registry makes it without a plugin, once
with the plugin attached while its poller, its uploader and its thread for rows work against a
service in another process, which publishes every ten seconds. Both are timed in turn, many short
repeats of each; between them the ring of copies is let run empty, so that no step is left out.

* rank 0: telemetry of every row, a broadcast of one rank every 32 steps
* changing batch: a new request in every step
* other rank: no telemetry
* paced: rank 0 at 100 steps a second, time of the clock on the wall: what the other threads take
  from the scheduler's is in it
* unread: rank 0 while the device never comes to its copies: steps are left out and counted
* rows: what the thread for rows takes for a step, eight together, to columns that are queued

Microseconds of the scheduler's thread (CPU time, median over repeats) for a whole step, and for the
slowest single step of the clock on the wall. There is no CUDA device here: what a device would add
is the launch of the same operations; those of SGLang's plugin are listed under ``operations``.
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
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy loads
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "client"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.bench_client import publishing
from benchmarks.measurement import machine_facts
from dspark_calib_client import __version__ as client_version
from dspark_calib_client.plugins.sglang.step_rows import step_columns
from tests.client.plugins.sglang.host import (
    Engine,
    Group,
    Request,
    environment_of,
    plain_blocks,
    step_arguments,
)
from tests.client.plugins.vllm import host as vllm
from tests.client.stand_in_service import DRAFTER, KEY, StandInService

GAMMA = 7
BATCHES = (1, 16, 64, 256)
PER_SECOND = 100
CHUNK = 16  # steps before the ring is let run empty: half of it


class Operations(TorchDispatchMode):
    """Counts what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def plain(**_: Any) -> None:
    """The observers without a plugin: what the hook's wrapper calls."""


def engine_of(url: str, rank: int) -> Engine:
    engine = Engine(GAMMA, group=Group(rank, 1))
    if engine.start(settings(url)) is None:
        raise SystemExit("the plugin stepped aside")
    return engine


def settings(url: str) -> dict[str, str]:
    return environment_of(url, DRAFTER, KEY, BROADCAST_STEPS="32", INTERVAL="1", WAIT="30")


def step_of(rows: int) -> dict[str, Any]:
    reqs = [Request(f"r{index}") for index in range(rows)]
    return step_arguments("compact", reqs, plain_blocks(rows, GAMMA), GAMMA)


def drained(engine: Any) -> None:
    """Wait until the rows of all steps have been made."""
    attached = engine.attachment
    while attached._maker is not None and attached._maker._thread.is_alive():
        if not len(attached._copies):
            return
        time.sleep(0.002)


def timed(call: Any, steps: int) -> tuple[float, float]:
    """CPU microseconds per call, and the slowest on the wall."""
    slowest = 0
    began = time.thread_time_ns()
    for _ in range(steps):
        start = time.perf_counter_ns()
        call()
        slowest = max(slowest, time.perf_counter_ns() - start)
    return (time.thread_time_ns() - began) / steps / 1e3, slowest / 1e3


def compare(engine: Any, call: Any, bare: Any, steps: int, repeats: int) -> dict[str, float]:
    """Both ways in turn, so that what else the machine does meets both."""
    without, with_plugin, slowest = [], [], []
    with torch.inference_mode():
        for _ in range(repeats):
            costs = []
            for _ in range(max(1, steps // CHUNK)):
                drained(engine)
                timed(bare, CHUNK // 4)  # the caches are the step's again
                without.append(timed(bare, CHUNK)[0])
                timed(call, CHUNK // 4)
                costs.append(timed(call, CHUNK // 2))
            with_plugin.append(statistics.median(cost for cost, _ in costs))
            slowest.append(max(longest for _, longest in costs))
    plain_cost, cost = statistics.median(without), statistics.median(with_plugin)
    return {
        "without": round(plain_cost, 2),
        "with": round(cost, 2),
        "added": round(cost - plain_cost, 2),
        "best": round(min(with_plugin), 2),
        "slowest step": round(statistics.median(slowest), 1),
    }


def calls(engine: Engine, rows: int, *, changing: bool = False) -> tuple[Any, Any]:
    """The end of a step with and without the plugin."""
    step = step_of(rows)

    def observed() -> None:
        engine.steps += 1
        if changing:
            step["reqs"][engine.steps % rows] = Request(f"n{engine.steps}")
        engine.observe(**step, forward_ct=engine.steps)

    return observed, lambda: plain(**step, forward_ct=0)


def vllm_calls(url: str, rows: int) -> tuple[Any, Any, Any]:
    """An engine, and vLLM's two calls of a step: blocks verified, new ones drafted."""
    engine = vllm.Engine(GAMMA, rows=rows)
    attached = engine.start(settings(url))
    if attached is None:
        raise SystemExit("the plugin stepped aside")
    names = [f"r{index}" for index in range(rows)]
    engine.add(*map(vllm.request, names))
    batch = SimpleNamespace(
        req_ids=names,
        num_reqs=rows,
        idx_mapping=torch.arange(rows),
        num_draft_tokens_per_req=np.full(rows, GAMMA),
        is_prefilling_np=np.zeros(rows, dtype=bool),
        seq_lens=torch.full((rows,), 100, dtype=torch.int32),
    )
    accepted = torch.arange(rows, dtype=torch.int32) % (GAMMA + 1)
    texts = SimpleNamespace(sampled_token_ids=torch.full((rows, GAMMA + 1), 11))
    result = (texts, accepted + 1, GAMMA - accepted)

    def observed() -> None:
        attached.after_sample(engine.runner, batch, result)
        attached.after_draft(batch)

    return SimpleNamespace(attachment=attached), observed, lambda: plain(batch=batch)


def rows_cost(engine: Engine, rows: int, repeats: int) -> dict[str, float]:
    """What the other thread takes, measured on this one."""
    copies = engine.attachment._copies
    engine.attachment._maker.stop(30.0)
    costs = []
    for _ in range(repeats):
        observed, _ = calls(engine, rows)
        for _ in range(8):
            observed()
        steps = copies.take(8)
        began = time.thread_time_ns()
        engine.attachment._client.record_rows(step_columns(steps)[0])
        costs.append((time.thread_time_ns() - began) / len(steps) / 1e3)
    return {"a step": round(statistics.median(costs), 2)}


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
        behind.attachment._maker.stop(30.0)  # nobody reads what arrives
        for rows in (16, 64):
            found[f"paced, {rows} requests"] = paced(engine, rows, 10.0, PER_SECOND)
        shared = (arguments.steps, arguments.repeats)
        for rows in BATCHES:
            found[f"rank 0, {rows} requests"] = compare(engine, *calls(engine, rows), *shared)
        found["changing batch, 64 requests"] = compare(
            engine, *calls(engine, 64, changing=True), *shared
        )
        found["vLLM, rank 0, 64 requests"] = compare(*vllm_calls(url, 64), *shared)
        found["other rank, 64 requests"] = compare(other, *calls(other, 64), *shared)
        timed(calls(behind, 64)[0], 40)  # until its ring is full
        found["unread, 64 requests"] = compare(behind, *calls(behind, 64), *shared)
        step = step_of(64)
        with Operations() as operations, torch.inference_mode():
            engine.observe(**step, forward_ct=engine.steps + 1)
        status = engine.attachment.status()
        found["rows, 64 requests"] = rows_cost(engine, 64, arguments.repeats)
        left_out = behind.attachment.status()["steps_left_out"]
        for one in (engine, behind):
            one.attachment.stop(2.0)
    for name, values in found.items():
        print(f"{name:24s}" + "".join(f"  {key} {value:9,.1f}" for key, value in values.items()))
    result = {
        "machine": machine_facts(),
        "client": client_version,
        "microseconds": found,
        "operations": dict(operations.found),
        "rows": status["rows"],
        "rows dropped": status["client"]["rows_dropped"],
        "steps left out": status["steps_left_out"],
        "unread steps left out": left_out,
    }
    print(json.dumps({name: result[name] for name in list(result)[3:]}))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
