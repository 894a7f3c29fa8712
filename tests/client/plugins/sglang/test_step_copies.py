from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.sglang.step_copies import INTEGERS, StepCopies  # noqa: E402

pytestmark = pytest.mark.torch


def ask(copies: StepCopies, rows: int, value: float) -> bool:
    integers = tuple(torch.full((rows,), index) for index in range(len(INTEGERS)))
    raw = torch.full((rows, 3), value, dtype=torch.bfloat16)
    ids = torch.arange(rows * 4).view(rows, 4)
    asked = copies.ask_for(raw, ids, integers, value)
    raw.fill_(float("nan"))  # as the next step overwrites it
    return asked


def test_steps_arrive_in_order_and_whole() -> None:
    copies = StepCopies(3, on_device=False)
    with torch.inference_mode():
        assert ask(copies, 2, 1.0)
        assert ask(copies, 70, 2.0)  # more rows than there is room for at first
    first, second = copies.arrived()
    assert (first.note, second.note) == (1.0, 2.0)
    assert first.logits.tolist() == [[1.0] * 3] * 2
    assert second.logits.shape == (70, 3)
    assert first.integers[1].tolist() == [4, 5, 6, 7, 0, 1, 2, 3, 4]
    assert copies.arrived() == []


class Pending:
    """A device that has not come to the copies yet."""

    def __init__(self) -> None:
        self.done = False

    def record(self) -> None:
        """Behind the copies."""

    def query(self) -> bool:
        return self.done


def test_what_is_under_way_is_not_waited_for_and_too_much_is_left_out() -> None:
    copies = StepCopies(3, on_device=False, depth=2)
    events: list[Any] = []
    for slot in copies._free:
        slot.event = Pending()
        events.append(slot.event)
    assert ask(copies, 1, 1.0)
    assert ask(copies, 1, 2.0)
    assert not ask(copies, 1, 3.0)
    assert copies.left_out == 1
    assert copies.arrived() == []
    events[1].done = True
    assert copies.arrived() == []  # in order: the first still holds it up
    events[0].done = True
    assert [copy.note for copy in copies.arrived()] == [1.0, 2.0]
    assert not ask(copies, 1, 4.0)  # their memory may still be read
    assert copies.arrived() == []
    assert ask(copies, 1, 5.0)


def test_a_faulty_step_gives_its_place_back() -> None:
    copies = StepCopies(3, on_device=False, depth=1)
    with pytest.raises(RuntimeError):
        copies.ask_for(torch.ones(2, 3), torch.ones(1, 4), (torch.ones(2),) * 5, None)
    assert ask(copies, 1, 1.0)
    assert np.array_equal(copies.arrived()[0].logits, [[1.0] * 3])
