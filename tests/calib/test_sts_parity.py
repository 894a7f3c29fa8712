"""Parity with SGLang's fitter: against the same algorithm in torch, and against SGLang itself."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from calib.errors import FitRefusedError, InvalidInputError
from calib.statuses import Refusal
from calib.sts_parity import ParityFit, fit_sts_parity, parity_grid
from tests.calib.blocks import simulate
from tests.calib.sglang_fitter import sglang_fitter

torch = pytest.importorskip("torch")

Fit = tuple[list[float], list[float], list[float]]  # temperatures, ECE before, ECE after


def torch_ece(survival: Any, target: Any, bins: int) -> float:
    p = survival.clamp(1e-8, 1 - 1e-8)
    index = torch.clamp((p * bins).to(torch.int64), max=bins - 1)
    rows = torch.bincount(index, minlength=bins).double()
    sums = [torch.zeros(bins, dtype=torch.float64).index_add_(0, index, v) for v in (p, target)]
    filled = rows > 0
    gaps = (sums[0][filled] / rows[filled] - sums[1][filled] / rows[filled]).abs()
    return float((gaps * rows[filled]).sum() / len(p))


def torch_fit(logits: Any, mask: Any, bins: int = 15) -> Fit:
    """All 41 temperatures for every position; the first of the smallest errors wins."""
    grid = torch.logspace(math.log10(0.1), math.log10(10.0), steps=41).double().tolist()
    z = torch.as_tensor(np.asarray(logits)).double()
    targets = torch.as_tensor(np.asarray(mask)).double()
    chosen = torch.ones(len(z), dtype=torch.float64)
    plain = chosen.clone()
    result: Fit = ([], [], [])
    for column, target in zip(z.T, targets.T, strict=True):
        plain = plain * torch.sigmoid(column)
        options = [chosen * torch.sigmoid(column / t) for t in grid]
        errors = [torch_ece(option, target, bins) for option in options]
        best = min(range(41), key=lambda index: (errors[index], index))
        chosen = options[best]
        for values, value in zip(
            result, (grid[best], torch_ece(plain, target, bins), errors[best]), strict=True
        ):
            values.append(value)
    return result


def assert_same(found: ParityFit, expected: Fit) -> None:
    assert list(found.temperatures) == expected[0]  # to the last bit
    assert found.ece_before == pytest.approx(expected[1], abs=1e-12)
    assert found.ece_after == pytest.approx(expected[2], abs=1e-12)


def test_the_grid_is_torchs_to_the_last_bit() -> None:
    expected = torch.logspace(math.log10(0.1), math.log10(10.0), steps=41).to(torch.float64)
    assert np.array_equal(parity_grid(), expected.numpy())


@pytest.mark.parametrize(
    ("rows", "gamma", "seed"),
    [
        (1, 7, 0),
        (1, 1, 1),
        (2, 3, 2),
        (17, 5, 3),
        (300, 7, 4),
        (300, 16, 5),
        (5000, 7, 6),
        (20011, 3, 7),
    ],
)
def test_same_temperatures_on_random_rows(rows: int, gamma: int, seed: int) -> None:
    blocks = simulate(rows, seed, gamma)
    assert_same(
        fit_sts_parity(blocks.logits, blocks.prefix_mask),
        torch_fit(blocks.logits, blocks.prefix_mask),
    )


@pytest.mark.parametrize("bins", [1, 2, 10, 20])
def test_same_temperatures_for_other_bins(bins: int) -> None:
    blocks = simulate(2000, seed=8, gamma=3)
    found = fit_sts_parity(blocks.logits, blocks.prefix_mask, n_bins=bins)
    assert_same(found, torch_fit(blocks.logits, blocks.prefix_mask, bins))


def ugly_inputs() -> Iterator[tuple[str, Any, Any]]:
    rng = np.random.default_rng(11)
    blocks = simulate(400, seed=12, gamma=4)
    z, mask = blocks.logits, blocks.prefix_mask
    yield "all zero", np.zeros_like(z), mask
    yield "all equal", np.full_like(z, 1.5), mask
    yield "extreme", np.where(rng.random(z.shape) < 0.5, 60.0, -60.0).astype(np.float32), mask
    yield "extreme and plain", np.where(rng.random(z.shape) < 0.5, 60.0, z).astype(np.float32), mask
    yield "huge", z * np.float32(1e30), mask
    yield "tiny", z * np.float32(1e-30), mask
    yield "repeated", np.repeat(z[:40], 10, axis=0), np.repeat(mask[:40], 10, axis=0)
    yield "rounded", np.round(z), mask
    yield "half precision", z.astype(np.float16).astype(np.float32), mask
    yield "all accepted", z, np.ones_like(mask)
    yield "all rejected", z, np.zeros_like(mask)
    trimmed = np.arange(4) < np.minimum(blocks.accepted, rng.integers(0, 5, 400))[:, None]
    yield "trimmed lengths read as rejections", z, trimmed.astype(np.float32)
    yield "soft labels", z, np.cumprod(rng.random(z.shape), axis=1).astype(np.float32)
    yield "float64 logits", z.astype(np.float64) + 1e-10, mask
    yield "integer mask", z, mask.astype(np.int64)
    yield "boolean mask", z, mask.astype(bool)


on_ugly_rows = pytest.mark.parametrize(
    ("logits", "mask"), [pytest.param(*case[1:], id=case[0]) for case in ugly_inputs()]
)


@on_ugly_rows
def test_same_temperatures_on_ugly_rows(logits: Any, mask: Any) -> None:
    assert_same(fit_sts_parity(logits, mask), torch_fit(logits, mask))


def test_exact_ties_take_the_smallest_temperature_and_are_marked() -> None:
    found = fit_sts_parity(np.zeros((50, 1)), np.tile([[0.0], [1.0]], (25, 1)))
    assert found.temperatures == (parity_grid()[0],)
    assert found.near_ties == (True,)
    assert found.evaluations == 41


def test_screening_changes_nothing_but_the_cost() -> None:
    blocks = simulate(60_000, seed=13, gamma=4)
    screened = fit_sts_parity(blocks.logits, blocks.prefix_mask)
    assert screened.evaluations < 0.3 * 41 * 4
    assert_same(screened, torch_fit(blocks.logits, blocks.prefix_mask))


@pytest.mark.parametrize("seed", [14, 15])
def test_histogram_mode_is_within_one_grid_step(seed: int) -> None:
    blocks = simulate(60_000, seed, gamma=7)
    exact = fit_sts_parity(blocks.logits, blocks.prefix_mask)
    quick = fit_sts_parity(blocks.logits, blocks.prefix_mask, histogram=True)
    steps = np.searchsorted(parity_grid(), quick.temperatures) - np.searchsorted(
        parity_grid(), exact.temperatures
    )
    assert np.abs(steps).max() <= 1
    assert quick.evaluations == 0
    assert quick.ece_before == ()
    assert quick.ece_after == pytest.approx(exact.ece_after, abs=0.01)


def test_histogram_mode_is_exact_on_few_rows() -> None:
    blocks = simulate(500, seed=16, gamma=3)
    exact = fit_sts_parity(blocks.logits, blocks.prefix_mask)
    assert fit_sts_parity(blocks.logits, blocks.prefix_mask, histogram=True) == exact


def test_r17_r18_within_one_grid_step() -> None:
    mask = np.repeat([[1.0], [0.0]], [70, 30], axis=0)
    found = fit_sts_parity(np.full((100, 1), 3.0), mask)
    assert abs(math.log(found.temperatures[0] / 3.5407)) < math.log(10) / 20
    assert found.ece_before[0] == pytest.approx(0.2526, abs=1e-4)
    assert found.ece_after[0] < 0.001
    two = np.repeat([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]], [49, 21, 30], axis=0)
    found = fit_sts_parity(np.tile([2.0, 1.5], (100, 1)), two)
    for temperature, expected in zip(found.temperatures, (2.3604, 1.7703), strict=True):
        assert abs(math.log(temperature / expected)) < math.log(10) / 20


def test_another_grid() -> None:
    blocks = simulate(500, seed=17, gamma=2)
    found = fit_sts_parity(blocks.logits, blocks.prefix_mask, grid=[0.5, 1.5, 3.0])
    assert set(found.temperatures) <= {0.5, 1.5, 3.0}


def test_no_rows_are_refused() -> None:
    with pytest.raises(FitRefusedError) as caught:
        fit_sts_parity(np.zeros((0, 7)), np.zeros((0, 7)))
    assert caught.value.status == Refusal.NO_ROWS


@pytest.mark.parametrize(
    ("logits", "mask", "grid", "field"),
    [
        (np.zeros((3, 2)), np.zeros((3, 1)), None, "prefix_mask"),
        (np.zeros(3), np.zeros(3), None, "prefix_mask"),
        (np.zeros((3, 0)), np.zeros((3, 0)), None, "prefix_mask"),
        (np.array([[np.nan]]), np.ones((1, 1)), None, "confidence_logits"),
        (np.zeros((1, 1)), np.array([[1.5]]), None, "prefix_mask"),
        (np.zeros((1, 1)), np.array([[-1.0]]), None, "prefix_mask"),
        (np.zeros((1, 1)), np.array([[np.nan]]), None, "prefix_mask"),
        (np.zeros((1, 1)), np.ones((1, 1)), [1.0, 0.5], "grid"),
        (np.zeros((1, 1)), np.ones((1, 1)), [0.0, 1.0], "grid"),
        (np.zeros((1, 1)), np.ones((1, 1)), [], "grid"),
    ],
)
def test_wrong_input_is_named(logits: Any, mask: Any, grid: Any, field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        fit_sts_parity(logits, mask, grid=grid)
    assert caught.value.field == field


@pytest.fixture(scope="module")
def fitter() -> Iterator[Any]:
    root = os.environ.get("DSPARK_SGLANG_WHEEL")
    if not root:
        pytest.skip("DSPARK_SGLANG_WHEEL names no unpacked wheel (make test-parity sets it)")
    with sglang_fitter(root) as module:
        yield module


def sglang_fit(fitter: Any, logits: Any, mask: Any) -> Fit:
    result = fitter.fit_sts_temperatures(
        logits=torch.as_tensor(np.asarray(logits)),
        prefix_mask=torch.as_tensor(np.asarray(mask)),
        grid=fitter.default_temperature_grid(),
    )
    return result["temperatures"], result["ece_before"], result["ece_after"]


@pytest.mark.parity
@pytest.mark.parametrize(
    ("rows", "gamma", "seed"),
    [(1, 7, 20), (37, 7, 21), (1000, 7, 22), (4000, 16, 23), (40_000, 7, 24)],
)
def test_same_temperatures_as_sglang(fitter: Any, rows: int, gamma: int, seed: int) -> None:
    blocks = simulate(rows, seed, gamma)
    assert_same(
        fit_sts_parity(blocks.logits, blocks.prefix_mask),
        sglang_fit(fitter, blocks.logits, blocks.prefix_mask),
    )


@pytest.mark.parity
@on_ugly_rows
def test_same_temperatures_as_sglang_on_ugly_rows(fitter: Any, logits: Any, mask: Any) -> None:
    assert_same(fit_sts_parity(logits, mask), sglang_fit(fitter, logits, mask))
