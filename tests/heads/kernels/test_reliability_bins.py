"""The binning kernel: the same bits as NumPy, whatever comes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from calib.errors import InvalidInputError
from calib.reliability import Binning, ReliabilitySums, bin_index
from heads.kernels.reliability_bins import reliability_sums
from heads.reference.reliability_bins import BinnedSums, cells_of
from tests.heads.kernels.compilation import TARGETS, Compilation, Compiler
from tests.heads.kernels.reliability_bins_configurations import JOBS

pytestmark = pytest.mark.torch

Floats = NDArray[np.float32]


def rows(count: int, gamma: int, seed: int = 0) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Predictions of every size, many on bin edges, with hard and soft labels and a mask."""
    random = np.random.default_rng(seed)
    p = random.random((count, gamma))
    p[::3] = np.rint(p[::3] * 60) / 60
    p[1::7] **= 25
    p[2::11] = np.rint(p[2::11])
    y = np.where(random.random(p.shape) < 0.5, random.random(p.shape), np.rint(p))
    return p.astype(np.float32), y.astype(np.float32), random.random(p.shape) < 0.8


def on_device(device: torch.device, *arrays: NDArray[np.generic]) -> list[torch.Tensor]:
    return [torch.from_numpy(array).to(device) for array in arrays]


@pytest.mark.parametrize(
    ("count", "gamma", "cells", "block"),
    [
        (0, 7, 15, None),
        (1, 7, 15, None),
        (1023, 1, 15, 256),
        (1023, 5, 100, 1024),
        (300, 2, 1, None),
        pytest.param(70_000, 7, 15, 32_768, marks=pytest.mark.slow),
    ],
)
def test_r81_equal_to_numpy_bit_for_bit(
    count: int, gamma: int, cells: int, block: int | None, device: torch.device
) -> None:
    p, y, mask = rows(count, gamma)
    found = reliability_sums(*on_device(device, p, y, mask), cells, block=block)
    assert found.to_host(cells) == ReliabilitySums.from_predictions(p, y, mask, cells)
    assert int(found.sums[0].sum()) == int(mask.sum())


def test_r81_log_losses_and_equal_mass_cells(device: torch.device) -> None:
    p, y, mask = rows(500, 3)
    losses = np.random.default_rng(1).exponential(size=p.shape) * 3
    losses[0, 0], losses[1, 1] = np.inf, 5000.0  # capped
    cells = cells_of(15, Binning.EQUAL_MASS)
    tensors = on_device(device, p, y, mask, losses)
    found = reliability_sums(*tensors[:3], cells, log_losses=tensors[3], block=512)
    expected = ReliabilitySums.from_predictions(
        p, y, mask, 15, binning="equal_mass", log_losses=losses
    )
    assert found.to_host(15, Binning.EQUAL_MASS) == expected


def test_r81_cells_of_the_callers_choice_beyond_the_ends_are_none(device: torch.device) -> None:
    p, y, _ = rows(200, 2)
    bins = np.random.default_rng(2).integers(-1, 16, p.shape).astype(np.int32)  # -1 … 15
    p_t, y_t, bins_t = on_device(device, p, y, bins)
    found = reliability_sums(p_t, y_t, None, 15, bins=bins_t)
    valid = (bins >= 0) & (bins < 15)
    assert int(found.sums[0].sum()) == int(valid.sum())
    for position in range(2):
        inside = valid[:, position]
        counts = np.bincount(bins[inside, position], minlength=15)
        assert found.sums[0, position].tolist() == counts.tolist()
        units = np.rint(p[inside, position].astype(np.float64) * 2.0**30)
        sums = np.bincount(bins[inside, position], weights=units, minlength=15)
        assert found.sums[1, position].tolist() == sums.tolist()


def test_r03_edges_fall_where_they_fall_everywhere(device: torch.device) -> None:
    """The same bin from NumPy fp64, NumPy fp32, the kernel, and two halves merged."""
    for values, n_bins in (([0.15, 0.30, 0.35, 0.60, 0.70, 0.95], 20), ([0.29], 100)):
        wide = np.array(values)[:, None]
        p = torch.from_numpy(wide.astype(np.float32)).to(device)
        y = torch.zeros_like(p)
        whole = reliability_sums(p, y, None, n_bins)
        seen = whole.sums[0, 0].nonzero().flatten().tolist()
        assert seen == sorted(bin_index(wide, n_bins).flatten().tolist())
        assert seen == sorted(bin_index(wide.astype(np.float32), n_bins).flatten().tolist())
        halves = reliability_sums(p[:1], y[:1], None, n_bins) + reliability_sums(
            p[1:], y[1:], None, n_bins
        )
        assert torch.equal(halves.sums, whole.sums)
        double = reliability_sums(p.double(), y.double(), None, n_bins)
        assert torch.equal(double.sums, whole.sums)
    assert seen == [29]  # fp64 arithmetic alone would say 28


def test_any_split_and_order_gives_the_same_bits(device: torch.device) -> None:
    p, y, mask = on_device(device, *rows(300, 2))
    whole = reliability_sums(p, y, mask, 15, block=256)
    parts = [
        reliability_sums(p[part], y[part], mask[part], 15, block=128)
        for part in (slice(0, 1), slice(1, 120), slice(120, 300))
    ]
    merged: BinnedSums = parts[2] + parts[0] + parts[1]
    assert torch.equal(merged.sums, whole.sums)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0)).to(device)
    shuffled = reliability_sums(p[order], y[order], mask[order], 15, block=1024)
    assert torch.equal(shuffled.sums, whole.sums)


def test_invalid_values_are_counted_and_refused(device: torch.device) -> None:
    p, y, mask = on_device(device, *rows(100, 3))
    mask[:] = True
    p[3, 0], p[4, 1], p[5, 1], y[6, 2] = float("nan"), -0.1, 1.5, float("nan")
    p[7, 2], mask[7, 2] = float("nan"), False  # unknown and masked: fine
    found = reliability_sums(p, y, mask, 15)
    assert found.invalid.tolist() == [1, 2, 1]
    assert found.sums[0].sum(-1).tolist() == [99, 98, 98]
    with pytest.raises(InvalidInputError, match="4 values"):
        found.to_host(15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_cast_exactly(dtype: torch.dtype, device: torch.device) -> None:
    p, y, _ = on_device(device, *rows(100, 2))
    found = reliability_sums(p.to(dtype), y, None, 15)
    assert torch.equal(found.sums, reliability_sums(p.to(dtype).float(), y, None, 15).sums)


MOST_REGISTERS = 168  # measured with Triton 3.7: up to 161, one warp a program


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_compiled(job: Compilation, target: str, compiler: Compiler) -> None:
    """Float64 is meant here, for NumPy's very numbers; wide loads cannot be, rows being apart."""
    report = compiler.compile(job, target)
    assert report.spills == 0
    assert report.registers <= MOST_REGISTERS
    assert report.shared == 0
    assert report.double_precision > 0
