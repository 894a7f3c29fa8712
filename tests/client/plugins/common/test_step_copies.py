from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common import step_copies  # noqa: E402
from dspark_calib_client.plugins.common.step_copies import StepCopies  # noqa: E402

pytestmark = pytest.mark.torch
GAMMA, WIDTH = 3, 6


def ask(copies: StepCopies, rows: int, value: float) -> bool:
    ids = torch.arange(rows * 4).view(rows, 4)
    more = [torch.full((rows,), index, dtype=torch.int32) for index in range(2)]
    raw = torch.full((rows, GAMMA), value, dtype=torch.bfloat16)
    asked = copies.ask_for(raw, (ids, *more), value)
    raw.fill_(float("nan"))  # as the next step overwrites it
    return asked


class Slow:
    """A tensor in pinned memory whose device comes to a copy later."""

    def __init__(self, tensor: Any, waiting: list[Any]) -> None:
        self._tensor = tensor
        self._waiting = waiting

    def __getitem__(self, part: slice) -> Slow:
        return Slow(self._tensor[part], self._waiting)

    def copy_(self, source: Any, *, non_blocking: bool) -> None:
        assert non_blocking
        own = source.clone()
        self._waiting.append(lambda: self._tensor.copy_(own))


def slow_copies(depth: int, **options: Any) -> tuple[StepCopies, list[Any]]:
    copies, waiting = StepCopies(GAMMA, WIDTH, pinned=False, depth=depth, **options), []
    for slot in copies._free:
        slot.logits, slot.integers = (Slow(t, waiting) for t in (slot.logits, slot.integers))
    return copies, waiting


def test_steps_arrive_in_order_and_whole() -> None:
    copies = StepCopies(GAMMA, WIDTH, pinned=False, rows=4)
    with torch.inference_mode():
        assert ask(copies, 2, 1.0)
        assert ask(copies, 70, 2.0)  # more rows than there is room for at first
        assert ask(copies, 1, 3.0)
    assert len(copies) == 3
    first, second = copies.take(2)
    (third,) = copies.take(9)
    assert (first.note, second.note, third.note) == (1.0, 2.0, 3.0)
    assert first.logits.tolist() == [[1.0] * GAMMA] * 2
    assert second.logits.shape == (70, GAMMA)
    assert first.integers.tolist() == [*range(8), 0, 0, 1, 1]
    assert copies.take(9) == []
    assert copies.lost == 0


def test_what_is_under_way_is_not_waited_for_and_too_much_is_left_out() -> None:
    """A place is used again only after what was in it has been read."""
    copies, waiting = slow_copies(2)
    assert ask(copies, 1, 1.0)
    assert ask(copies, 1, 2.0)
    assert not ask(copies, 1, 3.0)
    assert copies.left_out == 1
    late, late_integers, *next_ones = waiting
    for arrive in next_ones:
        arrive()
    assert copies.take(9) == []  # in order: the first still holds it up
    late()
    assert copies.take(9) == []  # its integers are not there yet
    assert not ask(copies, 1, 4.0)
    late_integers()
    assert [copy.note for copy in copies.take(1)] == [1.0]
    assert ask(copies, 1, 5.0)
    assert [copy.note for copy in copies.take(9)] == [2.0]


def test_a_step_that_never_comes_holds_up_the_others_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, waiting = slow_copies(2)
    assert ask(copies, 1, 1.0)
    assert ask(copies, 1, 2.0)
    for arrive in waiting[2:]:
        arrive()
    monkeypatch.setattr(step_copies, "_LOST_SECONDS", 0.0)
    assert [copy.note for copy in copies.take(9)] == [2.0]
    assert copies.lost == 1
    assert ask(copies, 1, 3.0)
    assert not ask(copies, 1, 4.0)  # its memory may still be written to


def test_odd_numbers_arrive_too() -> None:
    """NaN and infinity are numbers that a head may give; only one NaN of all means unwritten."""
    copies = StepCopies(GAMMA, 1, pinned=False)
    given = [float("nan"), float("-inf"), -float("nan")]
    copies.ask_for(torch.tensor([given]), [torch.tensor([-1])], None)
    (copy,) = copies.take(1)
    assert np.array_equal(copy.logits, [given], equal_nan=True)
    assert copy.integers.tolist() == [-1]


def test_a_faulty_step_is_refused_before_anything_is_asked_for() -> None:
    copies = StepCopies(GAMMA, WIDTH, pinned=False, depth=1)
    ids = torch.ones((2, 4), dtype=torch.int64)
    for logits, parts in (
        (torch.ones(2, GAMMA), [ids, torch.ones(1)]),
        (torch.ones(2, GAMMA), [ids] * 2),
        (torch.ones(2, GAMMA + 1), [ids]),
    ):
        with pytest.raises(ValueError, match="integers"):
            copies.ask_for(logits, parts, None)
    assert ask(copies, 1, 1.0)
    assert np.array_equal(copies.take(1)[0].logits, [[1.0] * GAMMA])
