"""Rows are made on a thread of their own: soon, in order, whatever single steps do."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common.row_maker import MOST_FAULTS, RowMaker  # noqa: E402
from dspark_calib_client.plugins.common.step_copies import StepCopies, StepCopy  # noqa: E402
from tests.client.waiting import eventually  # noqa: E402

pytestmark = pytest.mark.torch


class Telling:
    """A maker whose rows are the notes of its steps; a note below 0 is a fault."""

    def __init__(self, depth: int = 32) -> None:
        self.copies = StepCopies(1, pinned=False, depth=depth)
        self.told: list[int] = []
        self.threads: set[str] = set()
        self.open = threading.Event()
        self.open.set()
        self.maker = RowMaker(self.copies, self.make, self.hand_over)
        self.maker.start()

    def make(self, steps: Sequence[StepCopy]) -> tuple[dict[str, Any], int]:
        self.threads.add(threading.current_thread().name)
        assert self.open.wait(60.0)
        notes = [step.note for step in steps]
        if min(notes) < 0:
            raise ValueError("a step of which no rows can be made")
        return {"verified": notes}, 1

    def hand_over(self, columns: Mapping[str, Any]) -> int:
        self.told += columns["verified"]
        return len(columns["verified"])

    def step(self, note: int) -> bool:
        asked = self.copies.ask_for(1, [torch.zeros(1, dtype=torch.int64)], note)
        self.maker.nudge()
        return asked


@pytest.fixture
def telling() -> Iterator[Telling]:
    made = Telling()
    yield made
    made.open.set()
    assert made.maker.stop(30.0)


def test_the_last_step_before_an_engine_is_idle_is_told(telling: Telling) -> None:
    """No later step is needed, and the engine's thread does nothing."""
    telling.step(1)
    assert eventually(lambda: telling.told == [1], 10.0)
    telling.step(2)
    assert eventually(lambda: telling.told == [1, 2], 10.0)
    assert telling.threads == {"dspark-calib-rows"}
    assert eventually(lambda: telling.maker.rows == 2, 10.0)


def test_steps_are_told_in_order_and_a_full_ring_leaves_out(telling: Telling) -> None:
    telling.open.clear()
    asked = [telling.step(note) for note in range(100)]
    assert 32 <= sum(asked) <= 48  # the ring, and what the thread had taken when it was held up
    assert telling.copies.left_out == 100 - sum(asked)
    telling.open.set()
    kept = [note for note, went in enumerate(asked) if went]
    assert eventually(lambda: telling.told == kept, 10.0)


def test_a_faulty_step_costs_the_others_nothing(telling: Telling) -> None:
    telling.open.clear()
    for note in (1, 2, -3, 4):
        telling.step(note)
    telling.open.set()
    assert eventually(lambda: telling.told == [1, 2, 4], 10.0)
    assert (telling.maker.faults, telling.maker.ended) == (1, False)


def test_telemetry_ends_after_too_many_faults(caplog: pytest.LogCaptureFixture) -> None:
    telling = Telling(depth=2 * MOST_FAULTS)
    for _ in range(MOST_FAULTS):
        assert telling.step(-1)
    assert eventually(lambda: telling.maker.ended, 30.0)
    assert telling.maker.stop(10.0)
    assert "telemetry ends" in caplog.text


def test_a_stop_tells_what_is_under_way() -> None:
    telling = Telling()
    for note in range(20):
        telling.step(note)
    assert telling.maker.stop(10.0)
    assert telling.told == list(range(20))


def test_a_stop_ends_although_the_device_does_not_come() -> None:
    telling = Telling()
    telling.step(1)
    assert eventually(lambda: telling.told == [1], 10.0)
    slot = telling.copies._free[0]
    telling.copies._free.popleft()
    telling.copies._under_way.append((slot, 1, [], 2, 1e18))  # asked for, and never written
    telling.maker.nudge()
    assert telling.maker.stop(0.5)
    assert telling.told == [1]
