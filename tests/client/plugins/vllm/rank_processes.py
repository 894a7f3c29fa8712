"""Two ranks of one engine as two processes, with a torch store and gloo between them."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import threading
import time
from pathlib import Path

from tests.client.stand_in_service import DRAFTER, GAMMA, KEY, StandInService

PATIENCE = 120.0  # seconds for which ranks wait for each other


def walk_two_ranks(service: StandInService, folder: Path, steps: int) -> list[list[list[float]]]:
    """What each rank's graph made of one logit in every step, while revisions come in."""
    spawn = multiprocessing.get_context("spawn")
    ranks = [
        spawn.Process(target=_rank, args=(rank, service.url, str(folder), steps), daemon=True)
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    over = threading.Event()

    def publish() -> None:
        number = 1
        while not over.wait(0.05):
            number += 1
            service.publish([1.0 + number / 1024.0] * GAMMA)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        for rank in ranks:
            rank.join(PATIENCE)
    finally:
        over.set()
        publisher.join(PATIENCE)
        for rank in ranks:
            rank.kill()
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


def _rank(rank: int, url: str, folder: str, steps: int) -> None:
    import torch.distributed as group

    from tests.client.plugins.vllm.host import Engine, Group, Verdict, environment_of, request

    limit = datetime.timedelta(seconds=PATIENCE)
    place = f"file://{folder}/rendezvous"
    group.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=limit)
    engine = Engine(GAMMA, group=Group(rank, 2))
    attached = engine.start(environment_of(url, DRAFTER, KEY, BROADCAST_STEPS="3"))
    if attached is None:
        raise SystemExit("the plugin stepped aside")
    if attached._steadied is not None:
        attached._steadied._most = 10**9  # this test wants every revision
    engine.add(request("a"))
    held = []
    for _ in range(steps):
        held.append(engine.step(["a"], [Verdict([2.0] * GAMMA, [1] * GAMMA)])[0].tolist())
        time.sleep(0.002 * (1 + rank))  # ranks do not run in step by themselves
    if attached._client is not None:
        attached.stop(5.0)
    group.barrier()
    group.destroy_process_group()
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(held))
