from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.cost_table_staircase import StaircaseCostTable
from calib.errors import ScheduleError
from calib.prefix_scheduler import capacity_unconstrained

# Milliseconds by hand: (16, 9.5) lies below the 10 before it and is raised to it.
TABLE = StaircaseCostTable(
    ((1, 1.0), (8, 2.0)), ((8, 10.0), (16, 9.5), (32, 20.0), (64, 40.0)), graph_limit=16
)


@pytest.mark.parametrize(
    ("tokens", "requests", "milliseconds"),
    [
        (1, 1, 11.0),  # padded up to 8
        (9, 2, 12.0),  # running maximum, and two requests draft as eight do
        (16, 8, 12.0),
        (17, 8, 22.0),  # past the largest graph: the first point beyond it, no blend
        (48, 8, 32.0),  # linear between 32 and 64
        (80, 8, 52.0),  # along the last segment
        (16, 9, 10.0 + 2.0 + 1.0 / 7.0),
    ],
)
def test_step_times_by_hand(tokens: int, requests: int, milliseconds: float) -> None:
    assert float(TABLE.step_seconds(tokens, requests)) == pytest.approx(milliseconds / 1000.0)
    theta = float(TABLE.throughput(3.0, tokens, requests))
    assert theta == pytest.approx(3000.0 / milliseconds)


def test_arrays_keep_their_shape() -> None:
    tokens = np.array([[1, 16], [48, 80]])
    assert TABLE.step_seconds(tokens, 8).shape == (2, 2)


def test_a_pad_bucket_is_filled_because_it_is_free() -> None:
    """Eight tokens cost what one costs: all seven likely drafts are verified, unlikely ones too."""
    survival = np.array([[0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005]])
    table = StaircaseCostTable(((1, 1.0),), ((8, 10.0), (16, 12.0)), graph_limit=16)
    assert capacity_unconstrained(survival, table) == 7
    assert capacity_unconstrained(survival, table, largest=3) == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"verify_curve": ()}, "verify_curve"),
        ({"verify_curve": ((8, 1.0), (8, 2.0))}, "verify_curve"),
        ({"verify_curve": ((0, 1.0),)}, "verify_curve"),
        ({"draft_curve": ((1, -1.0),)}, "draft_curve"),
        ({"draft_curve": ((1, float("nan")),)}, "draft_curve"),
        ({"graph_limit": -1}, "cudagraph_limit"),
    ],
)
def test_curves_are_checked(changes: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"draft_curve": ((1, 1.0),), "verify_curve": ((1, 1.0),)}
    with pytest.raises(ScheduleError) as caught:
        StaircaseCostTable(**given | changes)
    assert caught.value.field == field
