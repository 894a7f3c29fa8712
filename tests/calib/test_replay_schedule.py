"""All steps at once against the prefix scheduler, step by step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calib.cost_table import AdditiveCostTable, CostTable, FlatCostTable, MeasuredCostTable
from calib.cost_table_shapes import analytic_cost_table
from calib.errors import ConfigurationError
from calib.prefix_scheduler import schedule_early_stop, schedule_lagged, schedule_unconstrained
from calib.replay_schedule import schedule_steps, step_seconds
from calib.replay_steps import ReplaySteps

TABLES: list[CostTable] = [
    FlatCostTable((1, 4, 9, 14, 40), (50.0, 48.0, 47.0, 30.0, 12.0), 64),
    AdditiveCostTable(0.01, (1, 8), (0.0, 0.004), (1, 12, 40), (0.0, 0.001, 0.03)),
    MeasuredCostTable((1, 6, 20), (0.02, 0.021, 0.05)),
    analytic_cost_table("staircase", max_batch_tokens=80, knee=8, tile=8),
]


def steps_of(sizes: list[int], slots: list[int] | None = None) -> ReplaySteps:
    total = sum(sizes)
    places = [place for size in sizes for place in range(size)] if slots is None else slots
    return ReplaySteps(
        rows=np.arange(total),
        starts=np.concatenate([[0], np.cumsum(sizes)]),
        streams=np.zeros(len(sizes), dtype=np.intp),
        slots=np.array(places, dtype=np.intp),
        requests_named=slots is not None,
        left_out=0,
    )


def parts(steps: ReplaySteps) -> list[slice]:
    ends = steps.starts.tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def survivals(rows: int, gamma: int, seed: int) -> NDArray[np.float64]:
    """Survivals that sometimes rise, tie, vanish and reach 1."""
    draw = np.random.default_rng(seed)
    smooth = np.cumprod(draw.beta(4.0, 1.0, (rows, gamma)), axis=1)
    coarse = draw.choice([0.0, 0.25, 0.5, 0.75, 1.0], (rows, gamma))
    return np.where(draw.random((rows, 1)) < 0.5, smooth, coarse)


@pytest.mark.property
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    gamma=st.integers(1, 5),
    table=st.sampled_from(TABLES),
    seed=st.integers(0, 2**20),
)
def test_policies_of_one_step_are_those_of_the_scheduler(
    sizes: list[int], gamma: int, table: CostTable, seed: int
) -> None:
    steps = steps_of(sizes)
    values = survivals(sum(sizes), gamma, seed)
    found = schedule_steps(values, steps, table)
    searched = schedule_steps(values, steps, table, "unconstrained")
    for part in parts(steps):
        assert found[part].tolist() == schedule_early_stop(values[part], table).verified.tolist()
        best = schedule_unconstrained(values[part], table)
        assert searched[part].tolist() == best.verified.tolist()


@pytest.mark.property
@given(
    size=st.integers(1, 5),
    count=st.integers(1, 7),
    gamma=st.integers(1, 4),
    table=st.sampled_from(TABLES),
    seed=st.integers(0, 2**20),
)
def test_lagged_is_that_of_the_scheduler(
    size: int, count: int, gamma: int, table: CostTable, seed: int
) -> None:
    """Requests stay: the capacity comes from the same rows of the step before the last."""
    steps = steps_of([size] * count)
    values = survivals(size * count, gamma, seed)
    found = schedule_steps(values, steps, table, "lagged")
    ones = np.ones((size, gamma))
    for number, part in enumerate(parts(steps)):
        older = values[parts(steps)[number - 2]] if number >= 2 else ones
        wanted = schedule_lagged(values[part], older, table)
        assert found[part].tolist() == wanted.verified.tolist()


def test_lagged_follows_requests_and_not_rows() -> None:
    """Step 2 has request 0 (in step 0 as well, second row) and request 9, which is new."""
    table = TABLES[2]
    values = survivals(6, 3, seed=3)
    steps = steps_of([2, 2, 2], slots=[4, 0, 4, 0, 9, 0])
    older = np.stack([np.ones(3), values[1]])
    wanted = schedule_lagged(values[4:], older, table).verified
    assert schedule_steps(values, steps, table, "lagged")[4:].tolist() == wanted.tolist()


def test_lagged_never_looks_into_another_engine() -> None:
    table = TABLES[2]
    values = survivals(6, 3, seed=5)
    one = steps_of([2, 2, 2])
    other = ReplaySteps(one.rows, one.starts, np.array([0, 0, 1]), one.slots, one.requests_named, 0)
    wanted = schedule_lagged(values[4:], np.ones((2, 3)), table).verified
    assert schedule_steps(values, other, table, "lagged")[4:].tolist() == wanted.tolist()


def test_appendix_a_the_next_token_decides_nothing() -> None:
    """SPS(1) = 1, SPS(2) = .5, SPS(3) = .45: whatever c_2 is, token 1 is not verified."""
    table = FlatCostTable((1, 2, 3), (1.0, 0.5, 0.45), 3)
    values = np.array([[0.8, 0.8 * c] for c in (0.0, 0.3, 0.9, 1.0)])
    assert schedule_steps(values, steps_of([1] * 4), table).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("table", TABLES)
def test_seconds_and_tokens(table: CostTable) -> None:
    steps = steps_of([2, 1, 3])
    lengths = np.array([1, 2, 0, 3, 0, 1])
    seconds, tokens = step_seconds(lengths, steps, table)
    assert tokens.tolist() == [5, 1, 7]
    wanted: list[Any] = [float(table.step_seconds(b, r)) for b, r in ((5, 2), (1, 1), (7, 3))]
    assert seconds.tolist() == wanted


def test_another_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="policy"):
        schedule_steps(np.ones((1, 1)), steps_of([1]), TABLES[0], "best")  # type: ignore[arg-type]
