"""All ranks hold the same vector during every step: two real processes, two kinds of collective."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspark_calib_client import (
    CalibrationClient,
    ClientConfigurationError,
    RankZeroBroadcaster,
    Source,
    State,
    SteppedApplication,
    Temperatures,
)
from tests.client import ranks
from tests.client.stand_in_service import GAMMA, StandInService

STEPS, EVERY, LEAD = 400, 4, 2
SPAWN = multiprocessing.get_context("spawn")


def temperatures(first: float, publication: int = 2) -> Temperatures:
    return Temperatures(
        (first, 1.0, 1.0),
        publication,
        publication - 1,
        None,
        None,
        State.FRESH,
        Source.SERVICE,
        0.0,
    )


class Told:
    """Stands for a client: says what it is told to say."""

    def __init__(self, now: Temperatures) -> None:
        self.now = now

    def current(self) -> Temperatures:
        return self.now


def broadcaster(rank: int, client: Any, broadcast: Any, **options: Any) -> RankZeroBroadcaster:
    application = SteppedApplication(np.ones(GAMMA, np.float32), GAMMA)
    return RankZeroBroadcaster(client, broadcast, rank, application=application, **options)


@contextmanager
def flipping(service: StandInService) -> Iterator[None]:
    """Publish something new all the time."""
    over = threading.Event()

    def publish() -> None:
        number = 1
        while not over.wait(0.05):
            number += 1
            service.publish([1.0 + number / 1024.0] * GAMMA)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60.0)


def check_ranks_agree(held: list[list[list[float]]]) -> None:
    """Equal vectors during every step, whole ones, that change only where they may."""
    assert len(held) == 2
    assert len(held[0]) == STEPS
    for step in range(STEPS):
        assert held[0][step] == held[1][step], step
        assert len(set(held[0][step])) == 1
    changes = [step for step in range(1, STEPS) if held[0][step] != held[0][step - 1]]
    assert len(changes) >= 3
    assert all(step % EVERY == LEAD for step in changes)
    firsts = [vector[0] for vector in held[0]]
    assert firsts == sorted(firsts)  # publications only grow, and so do these


@pytest.mark.slow
def test_two_processes_over_a_pipe(service: StandInService) -> None:
    reader, writer = SPAWN.Pipe(duplex=False)
    answers = [SPAWN.Pipe(duplex=False) for _ in range(2)]
    processes = [
        SPAWN.Process(
            target=ranks.pipe_rank,
            args=(rank, service.url, end, answers[rank][1], STEPS, EVERY),
            daemon=True,
        )
        for rank, end in ((0, writer), (1, reader))
    ]
    with flipping(service):
        for process in processes:
            process.start()
        held = []
        for answer, _ in answers:
            assert answer.poll(240.0)
            held.append(answer.recv())
        for process in processes:
            process.join(60.0)
    assert [process.exitcode for process in processes] == [0, 0]
    check_ranks_agree(held)


@pytest.mark.slow
@pytest.mark.torch
def test_two_processes_over_gloo(service: StandInService, tmp_path: Path) -> None:
    processes = [
        SPAWN.Process(
            target=ranks.gloo_rank,
            args=(rank, service.url, str(tmp_path), STEPS, EVERY),
            daemon=True,
        )
        for rank in range(2)
    ]
    with flipping(service):
        for process in processes:
            process.start()
        for process in processes:
            process.join(240.0)
    assert [process.exitcode for process in processes] == [0, 0]
    held = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    check_ranks_agree(held)


def test_nothing_new_is_a_message_of_nothing() -> None:
    sent: list[Any] = []
    client = Told(temperatures(1.5))
    rank0 = broadcaster(0, client, lambda box: sent.append(box[0]), every=2, lead=1)
    applied = [rank0.at_step(step) for step in range(8)]
    assert [bool(news) for news in sent] == [True, False, False, False]
    assert [step for step, now in enumerate(applied) if now] == [1]
    assert applied[1] == temperatures(1.5)
    client.now = temperatures(1.25, 3)
    assert [rank0.at_step(step) for step in range(8, 10)][1] == client.now
    assert rank0.broadcasts == 5


def test_messages_are_plain() -> None:
    sent: list[Any] = []
    rank0 = broadcaster(0, Told(temperatures(1.5)), lambda box: sent.append(box[0]))
    rank0.at_step(0)
    assert json.loads(json.dumps(sent[0]))["values"] == [1.5, 1.0, 1.0]


def test_a_change_of_state_alone_is_no_news() -> None:
    sent: list[Any] = []
    client = Told(temperatures(1.5))
    rank0 = broadcaster(0, client, lambda box: sent.append(box[0]), every=1)
    rank0.at_step(0)
    client.now = Temperatures((1.5, 1.0, 1.0), 2, 1, None, None, State.STALE, Source.SERVICE, 500.0)
    rank0.at_step(1)
    assert sent[1] is None


def test_a_collective_that_raises_is_counted_and_told_again() -> None:
    calls = iter([OSError("network"), None, None])

    def broadcast(box: list[Any]) -> None:
        fault = next(calls)
        if fault is not None:
            raise fault

    rank0 = broadcaster(0, Told(temperatures(1.5)), broadcast, every=1, lead=1)
    applied = [rank0.at_step(step) for step in range(3)]
    assert rank0.failed == 1
    assert applied == [None, None, temperatures(1.5)]


@pytest.mark.parametrize(
    "news", ["text", {"step": 1}, {"values": [1.0]}, 7, {**dict.fromkeys("abc"), "step": None}]
)
def test_a_message_of_nonsense_is_counted(news: Any) -> None:
    def broadcast(box: list[Any]) -> None:
        box[0] = news

    other = broadcaster(1, None, broadcast)
    assert other.at_step(0) is None
    assert other.failed == 1


@pytest.mark.parametrize("values", [(float("nan"), 1.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0)])
def test_numbers_that_may_not_be_applied_are_refused_on_every_rank(values: Any) -> None:
    bad = Temperatures(values, 2, 1, None, None, State.FRESH, Source.SERVICE, 0.0)
    box: list[Any] = []
    rank0 = broadcaster(0, Told(bad), box.extend)
    rank0.at_step(0)

    def receive(into: list[Any]) -> None:
        into[0] = box[0]

    other = broadcaster(1, None, receive)
    other.at_step(0)
    for rank in (rank0, other):
        assert rank.failed == 1
        assert rank.at_step(1) is None


def test_wrong_arguments_are_refused_at_start() -> None:
    with pytest.raises(ClientConfigurationError, match="rank 0"):
        broadcaster(0, None, print)
    with pytest.raises(ClientConfigurationError, match="every"):
        broadcaster(1, None, print, every=0)
    for lead in (0, 5):
        with pytest.raises(ClientConfigurationError, match="lead"):
            broadcaster(1, None, print, every=4, lead=lead)


def test_only_rank_zero_asks() -> None:
    client = CalibrationClient("http://127.0.0.1:9", "d", GAMMA, engine_id="e")
    other = broadcaster(1, client, lambda box: None)
    assert other._client is None
