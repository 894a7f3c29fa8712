from __future__ import annotations

import functools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.errors import ConfigurationError, InvalidInputError
from calib.reliability import (
    FINE_CELLS,
    LOSS_CAP,
    Binning,
    ReliabilitySums,
    bin_index,
    check_bins,
    equal_mass_groups,
    one_of,
)

SUMS = (
    "count",
    "sum_p",
    "sum_y",
    "sum_squared_residual",
    "sum_variance",
    "sum_label_variance",
)


@pytest.mark.parametrize(
    ("values", "n_bins", "expected"),
    [
        ([0.15, 0.30, 0.35, 0.60, 0.70, 0.95], 20, [3, 6, 7, 12, 14, 19]),
        ([0.29], 100, [29]),  # fp64 alone: 0.29 * 100 = 28.999999999999996
        ([0.0, 1.0, np.nextafter(1.0, 0.0)], 15, [0, 14, 14]),
    ],
)
def test_r03_same_bin_from_fp64_fp32_and_merged_halves(
    values: list[float], n_bins: int, expected: list[int]
) -> None:
    assert bin_index(np.array(values, dtype=np.float64), n_bins).tolist() == expected
    assert bin_index(np.array(values, dtype=np.float32), n_bins).tolist() == expected
    halves = [
        ReliabilitySums.from_predictions(part, np.zeros(len(part)), n_bins=n_bins)
        for part in (values[: len(values) // 2], values[len(values) // 2 :])
    ]
    merged = (halves[0] + halves[1]).count[0]
    assert merged.tolist() == np.bincount(expected, minlength=n_bins).tolist()


def test_r01_probability_one_stays_in_the_last_bin() -> None:
    assert bin_index([0.92, 1.0, 1.0], 10).tolist() == [9, 9, 9]


def test_bin_index_keeps_the_shape() -> None:
    assert bin_index(np.full((2, 3, 4), 0.5)).shape == (2, 3, 4)
    assert bin_index([]).shape == (0,)


@pytest.mark.parametrize("bad", [np.nan, -0.001, 1.001, np.inf])
def test_bin_index_refuses_what_is_no_probability(bad: float) -> None:
    with pytest.raises(InvalidInputError, match="1 of 2 values"):
        bin_index([0.5, bad])


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, 1 << 17])
def test_check_bins_refuses(bad: float) -> None:
    with pytest.raises(ConfigurationError):
        check_bins(bad)  # type: ignore[arg-type]


def test_one_of_lists_the_words() -> None:
    with pytest.raises(ConfigurationError, match="equal_width, equal_mass"):
        one_of("binning", "quantile", Binning)


def test_sums_against_plain_arithmetic() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random((50, 3)).astype(np.float32), rng.random((50, 3)).astype(np.float32)
    mask = rng.random((50, 3)) < 0.7
    sums = ReliabilitySums.from_predictions(p, np.where(mask, y, np.nan), mask, n_bins=5)
    for k in range(3):
        for index in range(5):
            rows = mask[:, k] & (bin_index(p[:, k], 5) == index)
            a, b = p[rows, k].astype(float), y[rows, k].astype(float)
            terms = (a * 0 + 1, a, b, (b - a) ** 2, a * (1 - a), b * (1 - b))
            got = [getattr(sums, name)[k, index] for name in SUMS]
            scale = np.array([1.0, *[2.0**30] * 5])
            assert got / scale == pytest.approx([t.sum() for t in terms], abs=50 * 2.0**-31)


def test_log_losses_are_summed_and_capped() -> None:
    sums = ReliabilitySums.from_predictions([0.2, 0.9], [0, 1], log_losses=[0.25, 1e9])
    assert sums.mean_log_loss(0) == (0.25 + LOSS_CAP) / 2
    assert ReliabilitySums.from_predictions([0.2], [0]).mean_log_loss(0) is None


def test_chunk_sums_stay_exact_at_their_largest() -> None:
    """A million rows of p = 1 and of the largest loss: past 2**53 only between chunks."""
    rows = 1 << 20
    sums = ReliabilitySums.from_predictions(
        np.ones(rows), np.ones(rows), log_losses=np.full(rows, LOSS_CAP)
    )
    assert sums.sum_p[0, -1] == rows << 30
    assert sums.sum_log_loss is not None
    assert sums.sum_log_loss[0, -1] == rows * int(LOSS_CAP) << 24


def test_merging_refuses_other_shapes_and_overflow() -> None:
    a = ReliabilitySums.from_predictions([0.5], [1])
    with pytest.raises(InvalidInputError, match="one shape"):
        a + ReliabilitySums.from_predictions([0.5], [1], n_bins=10)
    with pytest.raises(InvalidInputError, match="one shape"):
        a + ReliabilitySums.from_predictions([0.5], [1], log_losses=[0.7])
    full = ReliabilitySums.zeros(1)
    full.sum_p[...] = np.iinfo(np.int64).max
    with pytest.raises(InvalidInputError, match="int64 is full"):
        full + full
    with pytest.raises(TypeError):
        a + 1  # type: ignore[operator]


def test_equality_is_by_value_and_sums_do_not_hash() -> None:
    a, b = (ReliabilitySums.from_predictions([0.5], [1]) for _ in range(2))
    assert a == b
    assert a != ReliabilitySums.from_predictions([0.5], [0])
    assert a != "sums"
    with pytest.raises(TypeError):
        hash(a)


@pytest.mark.parametrize(
    ("p", "y", "mask"),
    [([0.5], [1, 0], None), ([0.5], [1], [True, False]), ([[[0.5]]], [[[1]]], None)],
)
def test_shapes_must_agree(p: object, y: object, mask: object) -> None:
    with pytest.raises(InvalidInputError):
        ReliabilitySums.from_predictions(p, y, mask)  # type: ignore[arg-type]


def test_no_rows_are_the_neutral_element() -> None:
    a = ReliabilitySums.from_predictions([[0.1, 0.9]], [[0, 1]])
    assert a + ReliabilitySums.zeros(2) == a
    empty = ReliabilitySums.from_predictions(np.zeros((0, 2)), np.zeros((0, 2)))
    assert empty == ReliabilitySums.zeros(2)


def test_equal_mass_groups_keep_heavy_cells_whole() -> None:
    assert equal_mass_groups(np.array([1, 1, 1, 1]), 2).tolist() == [0, 0, 1, 1]
    assert equal_mass_groups(np.array([0, 10, 0]), 4).tolist() == [0, 2, 3]
    assert equal_mass_groups(np.zeros(3), 4).tolist() == [0, 0, 0]
    assert equal_mass_groups(np.array([0.5, 0.5]), 2).tolist() == [0, 1]


def test_equal_mass_bins_are_nearly_equal() -> None:
    p = np.random.default_rng(0).random(15_000)
    sums = ReliabilitySums.from_predictions(p, p, binning="equal_mass")
    assert sums.count.shape == (1, FINE_CELLS)
    assert sums.position(0).count == pytest.approx(np.full(15, 1000), abs=40)


# Probabilities on and next to the edges of 15 bins are drawn as often as any.
_edges = st.integers(0, 15).map(lambda index: index / 15)
_unit = st.one_of(_edges, st.floats(0, 1), st.sampled_from([np.nextafter(2 / 15, 0), 1 / 3]))


@st.composite
def _cells(source: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """p, y, mask and losses [N, g]."""
    rows, gamma = source(st.integers(1, 12)), source(st.integers(1, 3))
    size = rows * gamma
    draw = [
        source(st.lists(strategy, min_size=size, max_size=size))
        for strategy in (_unit, _unit, st.booleans(), st.floats(0, 100))
    ]
    return tuple(np.array(values).reshape(rows, gamma) for values in draw)  # type: ignore[return-value]


@pytest.mark.property
@settings(max_examples=40)
@given(
    cells=_cells(),
    order=st.randoms(use_true_random=False),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    binning=st.sampled_from(list(Binning)),
)
def test_merging_is_bit_equal_in_any_split_and_order(
    cells: tuple[np.ndarray, ...], order: object, cuts: list[int], binning: Binning
) -> None:
    p, y, mask, losses = cells
    whole = ReliabilitySums.from_predictions(p, y, mask, log_losses=losses, binning=binning)
    rows = list(range(len(p)))
    order.shuffle(rows)  # type: ignore[attr-defined]
    pieces = np.split(np.array(rows), sorted(min(cut, len(rows)) for cut in cuts))
    parts = [
        ReliabilitySums.from_predictions(
            p[piece], y[piece], mask[piece], log_losses=losses[piece], binning=binning
        )
        for piece in pieces
    ]
    order.shuffle(parts)  # type: ignore[attr-defined]
    assert functools.reduce(operator.add, parts) == whole


@pytest.mark.property
@given(values=st.lists(_unit, min_size=1), n_bins=st.integers(1, 2000))
def test_fp32_and_fp64_input_give_the_same_bins(values: list[float], n_bins: int) -> None:
    wide = np.array(values, dtype=np.float64)
    narrow = wide.astype(np.float32)
    assert np.array_equal(bin_index(wide, n_bins), bin_index(narrow, n_bins))
    labels = np.zeros(len(values))
    assert ReliabilitySums.from_predictions(wide, labels) == ReliabilitySums.from_predictions(
        narrow, labels
    )


@pytest.mark.property
@given(mass=st.lists(st.integers(0, 50), min_size=1, max_size=30), n_bins=st.integers(1, 20))
def test_equal_mass_groups_never_decrease(mass: list[int], n_bins: int) -> None:
    groups = equal_mass_groups(np.array(mass), n_bins)
    assert (np.diff(groups) >= 0).all()
    assert groups.min() >= 0
    assert groups.max() < n_bins


@pytest.mark.property
@given(seed=st.integers(0, 2**32 - 1))
def test_bin_conventions_agree_away_from_edges(seed: int) -> None:
    """Ours is [low, high), scikit-learn's (low, high]: equal where no p lies on an edge."""
    p = np.random.default_rng(seed).random(100).astype(np.float32)
    inner = np.linspace(0, 1, 16)[1:-1]
    p = p[np.abs(p[:, None] - inner).min(axis=1) > 1e-6]
    assert np.array_equal(bin_index(p), np.searchsorted(inner, p))
