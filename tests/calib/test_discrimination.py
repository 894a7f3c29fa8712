from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.discrimination import area_under_curve, score_groups
from calib.errors import InvalidInputError


@pytest.mark.parametrize(
    ("scores", "y", "expected"),
    [
        ([0.5] * 4, [1, 0, 1, 0], 0.5),
        ([0.9, 0.9, 0.1, 0.1], [1, 0, 1, 0], 0.5),
        ([0.8, 0.8, 0.3], [1, 0, 0], 0.75),
    ],
)
def test_r10_ties_count_half(scores: list[float], y: list[int], expected: float) -> None:
    assert area_under_curve(score_groups(scores, y)) == expected


def test_r12_soft_labels_count_as_parts_of_both_classes() -> None:
    area = area_under_curve(score_groups([0.9, 0.6, 0.2], [0.8, 0.5, 0.1]))
    assert area == pytest.approx(0.8125, abs=1e-7)


@pytest.mark.parametrize("label", [0, 1])
def test_r09_one_class_has_no_area(label: int) -> None:
    assert area_under_curve(score_groups([0.1, 0.7, 0.7], [label] * 3)) is None


def test_no_rows_have_no_area() -> None:
    assert area_under_curve(score_groups([], [])) is None
    assert area_under_curve(score_groups([], [], [])) is None


def test_perfect_and_reversed_ranking() -> None:
    assert area_under_curve(score_groups([1, 2, 3, 4], [0, 0, 1, 1])) == 1.0
    assert area_under_curve(score_groups([4, 3, 2, 1], [0, 0, 1, 1])) == 0.0


def test_refuses_scores_it_cannot_rank() -> None:
    with pytest.raises(InvalidInputError):
        score_groups([np.nan, 1.0], [0, 1])
    with pytest.raises(InvalidInputError):
        score_groups([1.0], [0, 1])
    with pytest.raises(InvalidInputError):
        score_groups([1.0], [1.5])


@pytest.mark.parity
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("decimals", [1, 9])
def test_agrees_with_sklearn(weighted: bool, decimals: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    scores = rng.normal(size=2000).round(decimals)  # one decimal: most rows tie
    y = (rng.random(2000) < 1 / (1 + np.exp(-scores))).astype(int)
    weights = rng.random(2000) if weighted else None
    ours = area_under_curve(score_groups(scores, y, weights))
    assert ours == pytest.approx(metrics.roc_auc_score(y, scores, sample_weight=weights), abs=1e-12)


@pytest.mark.parity
def test_soft_labels_agree_with_sklearn_on_split_rows() -> None:
    """Each row as one positive of weight c* and one negative of weight 1 - c*."""
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(2)
    scores, soft, weights = rng.normal(size=500).round(1), rng.random(500), rng.random(500)
    soft = soft.astype(np.float32).astype(np.float64)
    for weight in (None, weights):
        base = np.ones(500) if weight is None else weight
        theirs = metrics.roc_auc_score(
            np.repeat([1, 0], 500),
            np.tile(scores, 2),
            sample_weight=np.concatenate([base * soft, base * (1 - soft)]),
        )
        ours = area_under_curve(score_groups(scores, soft, weight))
        assert ours == pytest.approx(theirs, abs=1e-8)


@pytest.mark.property
@given(
    rows=st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 1, width=32)), min_size=1),
    order=st.randoms(use_true_random=False),
)
def test_row_order_changes_no_bit(rows: list[tuple[int, float]], order: object) -> None:
    before = area_under_curve(score_groups(*zip(*rows, strict=True)))
    order.shuffle(rows)  # type: ignore[attr-defined]
    assert area_under_curve(score_groups(*zip(*rows, strict=True))) == before


@pytest.mark.property
@given(rows=st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=12))
def test_area_is_the_share_of_won_pairs(rows: list[tuple[int, bool]]) -> None:
    pairs = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for a, positive in rows
        for b, other in rows
        if positive and not other
    ]
    scores, y = [s for s, _ in rows], [float(label) for _, label in rows]
    area = area_under_curve(score_groups(scores, y))
    if pairs:
        assert area == pytest.approx(np.mean(pairs), abs=1e-12)
    else:
        assert area is None
