"""One rank of an engine, as a process of its own, for the broadcast's tests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.client.stand_in_service import DRAFTER, GAMMA, KEY

STEP_SECONDS = 0.002
PATIENCE = 60.0  # seconds for which a rank waits for the other


def walk(
    rank: int,
    url: str,
    broadcast: Callable[[list[Any]], object],
    buffer: Any,  # [GAMMA] of torch or NumPy
    steps: int,
    every: int,
) -> list[list[float]]:
    """What the rank's buffer held during each step; only rank 0 asks the service."""
    from dspark_calib_client import CalibrationClient, RankZeroBroadcaster, SteppedApplication

    client = None
    applied = None
    if rank == 0:
        client = CalibrationClient(
            url, DRAFTER, GAMMA, KEY, engine_id="engine-0", interval=0.01, wait=0, start_delay=0.0
        )
        client.start()
        applied = client.report_applied
    application = SteppedApplication(buffer, GAMMA, applied=applied)
    broadcaster = RankZeroBroadcaster(
        client, broadcast, rank, application=application, every=every, lead=2
    )
    held = []
    for step in range(steps):
        if client is not None and step % (steps // 8) == 0:
            wait_for_news(client)
        broadcaster.at_step(step)
        held.append([float(value) for value in buffer])
        time.sleep(STEP_SECONDS * (1 + rank))  # ranks do not run in step by themselves
    if client is not None:
        client.stop(5.0)
    if broadcaster.failed or application.failed or application.late:
        raise SystemExit(f"rank {rank}: {vars(broadcaster)}")
    return held


def wait_for_news(client: Any) -> None:
    """Rank 0 walks no faster than news comes: on a busy machine there would be none to tell."""
    known = client.current().publication
    ends = time.monotonic() + PATIENCE
    while client.current().publication == known and time.monotonic() < ends:
        time.sleep(STEP_SECONDS)


def pipe_rank(
    rank: int, url: str, pipe: Connection, answer: Connection, steps: int, every: int
) -> None:
    """A rank whose collective is a pipe: rank 0 writes, rank 1 reads and acknowledges."""
    import numpy as np

    def broadcast(box: list[Any]) -> None:
        if rank == 0:
            pipe.send(box[0])
        elif pipe.poll(PATIENCE):
            box[0] = pipe.recv()
        else:
            raise TimeoutError("rank 0 is gone")

    answer.send(walk(rank, url, broadcast, np.ones(GAMMA, np.float32), steps, every))


def gloo_rank(rank: int, url: str, folder: str, steps: int, every: int) -> None:
    """A rank of a torch process group over gloo."""
    import datetime

    import torch
    import torch.distributed as group

    group.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=PATIENCE),
    )

    def broadcast(box: list[Any]) -> None:
        group.broadcast_object_list(box, src=0)

    held = walk(rank, url, broadcast, torch.ones(GAMMA), steps, every)
    group.barrier()
    group.destroy_process_group()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(held))
