from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dspark_calib_client.plugins.common import step_copies  # noqa: E402
from dspark_calib_client.plugins.common.step_copies import StepCopies  # noqa: E402

pytestmark = pytest.mark.torch
GAMMA, WIDTH = 3, 9


def ask(copies: StepCopies, rows: int, value: float) -> bool:
    ids = torch.arange(rows * 4).view(rows, 4)
    more = [torch.full((rows,), index, dtype=torch.int32) for index in range(2)]
    raw = torch.full((rows, GAMMA), value, dtype=torch.bfloat16)
    asked = copies.ask_for(rows, (raw, ids, *more), value)
    raw.fill_(float("nan"))  # as the next step overwrites it
    return asked


class Slow:
    """A tensor in pinned memory whose device comes to a copy later."""

    def __init__(self, tensor: Any, waiting: list[Any]) -> None:
        self._tensor = tensor
        self._waiting = waiting

    @property
    def shape(self) -> Any:
        return self._tensor.shape

    def __getitem__(self, part: slice) -> Slow:
        return Slow(self._tensor[part], self._waiting)

    def copy_(self, source: Any, *, non_blocking: bool) -> None:
        assert non_blocking
        own = source.clone()
        self._waiting.append(lambda: self._tensor.copy_(own))


def slow_copies(depth: int, **options: Any) -> tuple[StepCopies, list[Any]]:
    copies = StepCopies(WIDTH, pinned=False, depth=depth, **options)
    waiting: list[Any] = []
    for slot in copies._free:
        slot.place = slot.tensor = Slow(slot.tensor, waiting)
    return copies, waiting


def test_steps_arrive_in_order_and_whole() -> None:
    copies = StepCopies(WIDTH, pinned=False, rows=4)
    with torch.inference_mode():
        assert ask(copies, 2, 1.0)
        assert ask(copies, 70, 2.0)  # more rows than there is room for at first
        assert ask(copies, 1, 3.0)
    assert len(copies) == 3
    first, second = copies.take(2)
    (third,) = copies.take(9)
    assert (first.note, second.note, third.note) == (1.0, 2.0, 3.0)
    assert first.parts[0].tolist() == [[1.0] * GAMMA] * 2
    assert second.parts[0].shape == (70, GAMMA)
    assert [part.tolist() for part in first.parts[1:]] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [0, 0],
        [1, 1],
    ]
    assert [str(part.dtype) for part in first.parts] == ["float32", *["int64"] * 3]
    assert copies.take(9) == []
    assert copies.lost == 0


def test_what_is_under_way_is_not_waited_for_and_too_much_is_left_out() -> None:
    """A place is used again only after what was in it has been read."""
    copies, waiting = slow_copies(2)
    assert ask(copies, 1, 1.0)
    assert ask(copies, 1, 2.0)
    assert not ask(copies, 1, 3.0)
    assert copies.left_out == 1
    late, arrive = waiting
    arrive()
    assert copies.take(9) == []  # in order: the first still holds it up
    assert not ask(copies, 1, 4.0)
    late()
    assert [copy.note for copy in copies.take(1)] == [1.0]
    assert ask(copies, 1, 5.0)
    assert [copy.note for copy in copies.take(9)] == [2.0]


def test_a_step_that_never_comes_holds_up_the_others_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, waiting = slow_copies(2)
    assert ask(copies, 1, 1.0)
    assert ask(copies, 1, 2.0)
    waiting[1]()
    monkeypatch.setattr(step_copies, "_LOST_SECONDS", 0.0)
    assert [copy.note for copy in copies.take(9)] == [2.0]
    assert copies.lost == 1
    assert ask(copies, 1, 3.0)
    assert not ask(copies, 1, 4.0)  # its memory may still be written to


def test_a_step_has_arrived_when_its_last_word_has() -> None:
    copies = StepCopies(WIDTH, pinned=False)
    assert ask(copies, 2, 1.0)
    slot, size, *_ = copies._under_way[0]
    for place in (0, size - 1):
        word, slot.words[place] = int(slot.words[place]), step_copies._UNWRITTEN
        assert copies.take(1) == []
        slot.words[place] = word
    assert len(copies.take(1)) == 1


def test_odd_numbers_arrive_too() -> None:
    """NaN and infinity are numbers that a head may give; only one NaN of all means unwritten."""
    copies = StepCopies(8, pinned=False)
    given = [float("nan"), float("-inf"), -float("nan"), -0.0]
    counts = [-1, -(2**63), 2**40]
    copies.ask_for(1, [torch.tensor([given]), torch.tensor([counts])], None)
    ((_, (numbers, integers)),) = copies.take(1)
    assert np.array_equal(numbers, [given], equal_nan=True)
    assert np.signbit(numbers[0, 3])
    assert integers.tolist() == [counts]


def test_parts_of_any_kind_and_layout_arrive() -> None:
    """Padded, between other columns, of another kind: nothing of it is read as something else."""
    copies = StepCopies(20, pinned=False)
    wide = torch.arange(24, dtype=torch.int64).view(4, 6)
    parts = [
        (torch.arange(8.0).view(4, 2).double(), [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]),
        (wide[:, 1:3], [[1, 2], [7, 8], [13, 14]]),
        (wide[:, 4], [4, 10, 16]),
        (wide[:, 5].short(), [5, 11, 17]),
        (torch.tensor([True, False, True]), [1, 0, 1]),
        (torch.arange(6, dtype=torch.int32)[::2], [0, 2, 4]),
    ]
    assert copies.ask_for(3, [part for part, _ in parts], None)
    (copy,) = copies.take(1)
    assert [part.tolist() for part in copy.parts] == [expected for _, expected in parts]


def test_a_faulty_step_is_refused_before_anything_is_asked_for() -> None:
    copies = StepCopies(WIDTH, pinned=False, depth=1)
    raw, ids = torch.ones(2, GAMMA), torch.ones((2, 4), dtype=torch.int64)
    for parts, reason in (
        ([raw, ids, torch.ones(1)], "1 rows of a part in a step of 2"),
        ([raw, ids, ids], "38 words in 2 rows"),
    ):
        with pytest.raises(ValueError, match=reason):
            copies.ask_for(2, parts, None)
    assert ask(copies, 1, 1.0)
    assert np.array_equal(copies.take(1)[0].parts[0], [[1.0] * GAMMA])
