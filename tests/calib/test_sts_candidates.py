from __future__ import annotations

import numpy as np
import pytest

from calib.sts_candidates import CandidateOrder
from calib.sts_screen import SurvivalScreen
from tests.calib.blocks import simulate
from tests.calib.test_sts_screen import GRID, exact_ece


def walk(order: CandidateOrder, errors: np.ndarray) -> list[int]:
    seen: list[int] = []
    lowest = np.inf
    while (index := order.next(lowest)) is not None:
        seen.append(index)
        lowest = min(lowest, errors[index])
    return seen


def test_without_a_screen_all_come_in_order() -> None:
    assert walk(CandidateOrder(GRID, None), np.zeros(41)) == list(range(41))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_with_a_screen_the_best_always_comes_and_most_do_not(seed: int) -> None:
    blocks = simulate(25_000, seed, gamma=1)
    z, y = blocks.logits[:, 0].copy(), (blocks.accepted > 0).astype(np.uint8)
    errors = np.array([exact_ece(1.0, z, y, t, 15) for t in GRID])
    screen = SurvivalScreen.build(np.ones(len(z)), z, y, 15)
    order = CandidateOrder(GRID, screen)
    seen = walk(order, errors)
    assert int(np.argmin(errors)) in seen
    assert len(seen) <= 6
    assert seen[0] == int(np.argmin(order.estimates))


def test_equal_candidates_all_come() -> None:
    rows = 20_000
    z = np.zeros(rows, dtype=np.float32)
    y = (np.arange(rows) % 2).astype(np.uint8)
    screen = SurvivalScreen.build(np.ones(rows), z, y, 15)
    assert sorted(walk(CandidateOrder(GRID, screen), np.zeros(41))) == list(range(41))
