from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from calib.discrimination import area_under_curve, score_groups
from calib.errors import ConfigurationError, InvalidInputError
from calib.logit_sketch import LogitSketch
from calib.sketch_cells import LogitCells, forgetting_weights


def one_position(logits: list[float], labels: list[float]) -> LogitSketch:
    return LogitSketch.from_labels(np.array([logits]).T, np.array([labels]).T)


def held(cells: LogitCells, name: str) -> Any:
    """Values of the only position's cells that hold rows."""
    return getattr(cells, name)[cells.weight > 0.0].tolist()


def test_weight_one_reads_what_was_counted() -> None:
    cells = LogitCells.of(one_position([4.0, 4.0, 0.0], [1, 0, 1]))
    assert held(cells, "logit") == [0.0, 4.0]
    assert held(cells, "weight") == [1.0, 2.0]
    assert held(cells, "positive") == [1.0, 1.0]
    assert [cells.rows[0], cells.total[0], cells.effective_rows[0]] == [3, 3.0, 3.0]
    assert cells.one_class.tolist() == [False]


def test_forgetting_by_hand() -> None:
    old, new = one_position([1.0] * 8, [1] * 8), one_position([1.0] * 2, [0] * 2)
    weights = forgetting_weights([48.0, 0.0], half_life=24.0)
    assert weights == [0.25, 1.0]
    cells = LogitCells.weighted([old, new], weights)
    assert held(cells, "weight") == [4.0]
    assert held(cells, "positive") == [2.0]
    assert held(cells, "squared_weight") == [2.5]  # 8/16 + 2
    assert held(cells, "squared_positive") == [0.5]
    assert cells.effective_rows == pytest.approx([16.0 / 2.5])
    assert cells.rows.tolist() == [10]


def test_order_of_buckets_does_not_matter() -> None:
    draw = np.random.default_rng(0)
    buckets = [
        LogitSketch.from_lengths(draw.normal(size=(50, 3)), draw.integers(0, 4, 50))
        for _ in range(6)
    ]
    weights = forgetting_weights([0, 1, 2, 3, 3, 7], half_life=1.7)
    forward = LogitCells.weighted(buckets, weights)
    backward = LogitCells.weighted(buckets[::-1], weights[::-1])
    assert np.array_equal(forward.weight, backward.weight)
    assert np.array_equal(forward.logit, backward.logit)
    assert np.array_equal(forward.positive, backward.positive)


def test_forgotten_buckets_leave() -> None:
    cells = LogitCells.weighted([one_position([1.0], [1]), one_position([2.0], [0])], [0.0, 1.0])
    assert held(cells, "logit") == [2.0]
    nothing = LogitCells.weighted([one_position([1.0], [1])], [0.0])
    assert nothing.one_class.tolist() == [True]
    assert nothing.effective_rows.tolist() == [0.0]
    assert not nothing.equal_mass_bins(0, 15).any()


def test_auc_from_cells() -> None:
    draw = np.random.default_rng(1)
    z = draw.normal(1.0, 2.0, 40_000).astype(np.float32)
    y = (draw.random(40_000) < 1 / (1 + np.exp(-z / 1.4))).astype(float)
    exact = area_under_curve(score_groups(z, y))
    found = LogitCells.of(LogitSketch.from_labels(z[:, None], y[:, None])).auc(0)
    assert exact is not None
    assert found == pytest.approx(exact, abs=2e-4)


@pytest.mark.parametrize(
    ("case", "c", "y", "auc"),
    [
        ("r10", [0.5] * 4, [1, 0, 1, 0], 0.5),
        ("r10", [0.9, 0.9, 0.1, 0.1], [1, 0, 1, 0], 0.5),
        ("r10", [0.8, 0.8, 0.3], [1, 0, 0], 0.75),
        ("r12", [0.9, 0.6, 0.2], [0.8, 0.5, 0.1], 0.8125),
        ("r09", [0.9, 0.6], [1, 1], None),
    ],
)
def test_auc_of_small_inputs(case: str, c: list[float], y: list[float], auc: float | None) -> None:
    logits = [math.log(p / (1 - p)) for p in c]
    found = LogitCells.of(one_position(logits, y)).auc(0)
    assert found == (None if auc is None else pytest.approx(auc, abs=1e-8))


def test_equal_mass_bins() -> None:
    draw = np.random.default_rng(2)
    z = draw.normal(size=20_000)
    cells = LogitCells.of(LogitSketch.from_labels(z[:, None], np.ones((20_000, 1))))
    bins = cells.equal_mass_bins(0, 10)
    assert (np.diff(bins) >= 0).all()
    mass = np.bincount(bins, cells.weight[0], 10)
    assert mass.sum() == 20_000
    assert abs(mass - 2000).max() < 200
    tied = LogitCells.of(one_position([0.8] * 6, [1, 1, 0, 0, 0, 0]))
    assert (
        tied.equal_mass_bins(0, 15)[tied.weight[0] > 0.0].size == 1
    )  # equal values share a bin, whatever the count


def test_wrong_weights_are_named() -> None:
    sketch = one_position([1.0], [1])
    for weights in ([1.0, 1.0], [-1.0], [math.inf], [math.nan]):
        with pytest.raises(ConfigurationError, match="weights"):
            LogitCells.weighted([sketch], weights)
    with pytest.raises(InvalidInputError):
        LogitCells.weighted([], [])
    with pytest.raises(InvalidInputError):
        LogitCells.weighted([sketch, LogitSketch.empty(2)], [1.0, 0.5])
    for age, half_life in ((-1.0, 1.0), (1.0, 0.0), (math.nan, 1.0)):
        with pytest.raises(ConfigurationError):
            forgetting_weights([age], half_life)
    assert forgetting_weights([5.0], math.inf) == [1.0]
