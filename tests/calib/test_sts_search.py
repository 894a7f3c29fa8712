from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from calib.sts_search import SurvivalObjective, search_temperature
from tests.calib.blocks import simulate

BOUNDS = (0.05, 20.0)


def objective(z: Any, y: Any, survival: Any = None, n_bins: int = 15) -> SurvivalObjective:
    logits = np.asarray(z, dtype=np.float32)
    labels = np.asarray(y)
    labels = labels.astype(np.float64 if labels.dtype.kind == "f" else np.uint8)
    before = np.ones_like(logits) if survival is None else np.asarray(survival, dtype=np.float32)
    return SurvivalObjective(before, logits, labels, n_bins)


def test_ece_by_hand() -> None:
    # Bins of .62, .62 | .12: |1.24 - 1| + |.12 - 1| over 3 rows.
    z = np.log([0.62 / 0.38, 0.62 / 0.38, 0.12 / 0.88])
    found = objective(z, [1, 0, 1], n_bins=2).ece(1.0)
    assert found == pytest.approx((0.24 + 0.88) / 3, abs=1e-6)


def test_agrees_with_float64_arithmetic() -> None:
    blocks = simulate(40_000, seed=1, gamma=2)
    before = 1 / (1 + np.exp(-blocks.logits[:, 0].astype(np.float64) / 1.6))
    y = (blocks.accepted > 1).astype(np.uint8)
    tested = objective(blocks.logits[:, 1], y, before)
    for temperature in (0.3, 1.0, 1.5, 7.0):
        p = before / (1 + np.exp(-blocks.logits[:, 1].astype(np.float64) / temperature))
        sums = np.bincount((p * 15).astype(int), p - y, 15)
        assert tested.ece(temperature) == pytest.approx(np.abs(sums).sum() / len(p), abs=2e-5)
        kept = np.clip(p, 1e-6, 1 - 1e-6)
        loss = -np.where(y == 1, np.log(kept), np.log1p(-kept)).mean()
        assert tested.log_loss(temperature) == pytest.approx(loss, rel=1e-5)


def test_null_level_is_the_error_of_perfect_predictions() -> None:
    rng = np.random.default_rng(2)
    z = rng.normal(1.0, 1.5, 4000).astype(np.float32)
    p = 1 / (1 + np.exp(-z.astype(np.float64)))
    shown = [objective(z, (rng.random(4000) < p).astype(int)).ece(1.0) for _ in range(60)]
    assert objective(z, np.zeros(4000, dtype=int)).null_level(1.0) == pytest.approx(
        np.mean(shown), rel=0.08
    )


def test_total_is_the_same_for_any_order_and_any_chunking() -> None:
    blocks = simulate(40_000, seed=3, gamma=1)
    z, y = blocks.logits[:, 0], (blocks.accepted > 0).astype(int)
    order = np.random.default_rng(4).permutation(len(z))
    whole, shuffled = objective(z, y), objective(z[order], y[order])
    halves = [objective(z[part], y[part]) for part in (slice(0, 1), slice(1, None))]
    assert whole.total(1.37) == shuffled.total(1.37)
    assert whole.rows == sum(half.rows for half in halves)


def test_limits_are_those_of_the_sigmoid() -> None:
    tested = objective([2.0, -2.0, 2.0, -2.0], [1, 0, 0, 0])
    assert tested.best_limit("lower") == pytest.approx(0.25, abs=1e-6)  # p = 1, 0, 1, 0
    assert tested.best_limit("upper") == pytest.approx(0.25, abs=1e-6)  # p = 1/2, rate 1/4


@pytest.mark.parametrize(
    ("labels", "one"),
    [([1, 1], True), ([0, 0], True), ([1, 0], False), ([0.5, 0.5], False), ([], True)],
)
def test_one_class(labels: Any, one: bool) -> None:
    assert objective(np.ones(len(labels)), labels).one_class is one


def test_survive_multiplies_in_fp32() -> None:
    tested = objective([0.0, 2.0], [1, 0], survival=[0.5, 0.25])
    expected = np.float32([0.25, 0.25]) * np.float32([1.0, 1 / (1 + math.exp(-2.0))])
    assert np.array_equal(tested.survive(1.0), expected)


def test_r17_the_refined_search_closes_the_gap() -> None:
    found = search_temperature(objective(np.full(100, 3.0), [1] * 70 + [0] * 30), BOUNDS, 7)
    assert found.temperature == pytest.approx(3.5407, rel=1e-3)
    assert found.ece < 1e-4
    assert found.at_bound is None


def test_r18_on_top_of_a_raw_position_one_the_answer_would_be_another() -> None:
    z, y = np.full(100, 1.5), [1] * 49 + [0] * 51
    raw = np.full(100, 1 / (1 + math.exp(-2.0)))
    assert search_temperature(objective(z, y, raw), BOUNDS, 7).temperature == pytest.approx(
        6.63, rel=2e-3
    )
    fitted = np.full(100, 0.7)
    assert search_temperature(objective(z, y, fitted), BOUNDS, 7).temperature == pytest.approx(
        1.7703, rel=1e-3
    )


def test_each_refinement_halves_the_step() -> None:
    tested = objective(np.full(100, 3.0), [1] * 70 + [0] * 30)
    off = [
        abs(math.log(search_temperature(tested, BOUNDS, refinements).temperature / 3.5407))
        for refinements in (0, 2, 4, 7)
    ]
    assert all(
        error <= math.log(10) / 20 / 2**n for error, n in zip(off, (0, 2, 4, 7), strict=True)
    )


def test_true_ties_go_to_one() -> None:
    assert search_temperature(objective(np.zeros(10), [1, 0] * 5), BOUNDS, 7).temperature == 1.0
    # Saturated either way: any temperature in a wide range leaves the same error.
    saturated = objective([500.0] * 8 + [-500.0] * 2, [1] * 7 + [0] + [0, 1])
    found = search_temperature(saturated, BOUNDS, 7)
    assert found.temperature == 1.0
    assert found.at_bound is None


@pytest.mark.parametrize("rows", [4, 4000])
def test_r20_a_valley_that_is_flat_out_to_the_bound_is_at_the_bound(rows: int) -> None:
    tested = objective([2.0, 2.0, -2.0, -2.0] * (rows // 4), [1, 0, 1, 0] * (rows // 4))
    assert search_temperature(tested, BOUNDS, 7).at_bound == "upper"


def test_bounds_on_both_sides() -> None:
    z = np.full(1000, 0.01)
    sharp = objective(z, [1] * 900 + [0] * 100)
    assert search_temperature(sharp, BOUNDS, 7).at_bound == "lower"
    assert search_temperature(sharp, BOUNDS, 7).temperature >= BOUNDS[0]
    flat = objective(np.full(1000, 60.0), [1] * 700 + [0] * 300)
    assert search_temperature(flat, BOUNDS, 7).at_bound == "upper"
    assert search_temperature(flat, (0.05, 200.0), 7).temperature == pytest.approx(
        60 / math.log(7 / 3), rel=1e-3
    )


def test_screened_search_finds_what_the_full_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = simulate(30_000, seed=5, gamma=2)
    before = 1 / (1 + np.exp(-blocks.logits[:, 0] / 1.6))
    y = (blocks.accepted > 1).astype(int)
    screened = search_temperature(objective(blocks.logits[:, 1], y, before), BOUNDS, 5)
    monkeypatch.setattr(SurvivalObjective, "screen", lambda self: None)
    assert search_temperature(objective(blocks.logits[:, 1], y, before), BOUNDS, 5) == screened


def test_soft_labels_are_targets_too() -> None:
    found = search_temperature(objective(np.full(50, 3.0), np.full(50, 0.7)), BOUNDS, 7)
    assert found.temperature == pytest.approx(3.5407, rel=1e-3)
