"""The eager twin of the binning kernel: NumPy's bits from torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calib.errors import ConfigurationError, InvalidInputError
from calib.reliability import Binning, ReliabilitySums
from heads.reference.reliability_bins import cells_of, reliability_sums

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("count", "cells"), [(0, 15), (1, 15), (1023, 7), (70_000, 15)])
@pytest.mark.parametrize("losses", [False, True])
def test_r81_equal_to_numpy_bit_for_bit(count: int, cells: int, losses: bool) -> None:
    random = np.random.default_rng(count)
    p = random.random((count, 4)).astype(np.float32)
    p[::2] = np.rint(p[::2] * 48) / 48
    p[::5] **= 30
    y = random.random((count, 4)).astype(np.float32)
    mask = random.random((count, 4)) < 0.7
    y[~mask] = np.nan
    loss = random.exponential(size=p.shape) * 100 if losses else None
    found = reliability_sums(
        torch.from_numpy(p),
        torch.from_numpy(y),
        torch.from_numpy(mask),
        cells,
        log_losses=None if loss is None else torch.from_numpy(loss),
    )
    expected = ReliabilitySums.from_predictions(p, y, mask, cells, log_losses=loss)
    assert found.to_host(cells) == expected


def test_equal_mass_cells_and_merging() -> None:
    random = np.random.default_rng(0)
    p, y = (random.random((600, 2)) for _ in range(2))
    cells = cells_of(15, Binning.EQUAL_MASS)
    parts = [torch.from_numpy(v) for v in (p, y)]
    whole = reliability_sums(*parts, None, cells)
    expected = ReliabilitySums.from_predictions(p, y, binning="equal_mass")
    assert whole.to_host(15, Binning.EQUAL_MASS) == expected
    halves = reliability_sums(*(v[:100] for v in parts), None, cells) + reliability_sums(
        *(v[100:] for v in parts), None, cells
    )
    assert torch.equal(halves.sums, whole.sums)


def test_r81_given_cells() -> None:
    p = torch.full((4, 1), 0.5)
    bins = torch.tensor([[-1], [0], [2], [3]])
    found = reliability_sums(p, p, None, 3, bins=bins)
    assert found.sums[0, 0].tolist() == [1, 0, 1]
    assert found.sums[1, 0].tolist() == [1 << 29, 0, 1 << 29]


def test_what_is_wrong_is_counted_and_refused() -> None:
    p = torch.tensor([[0.5], [1.5], [float("nan")], [0.2]])
    y = torch.tensor([[float("nan")], [0.0], [1.0], [1.0]])
    found = reliability_sums(p, y, None, 15, log_losses=torch.tensor([[1.0], [1.0], [1.0], [-1.0]]))
    assert found.invalid.tolist() == [4]
    assert not found.sums.any()
    with pytest.raises(InvalidInputError) as caught:
        found.to_host(15)
    assert caught.value.field == "p"
    fine = reliability_sums(p[3:], y[3:])
    with pytest.raises(InvalidInputError) as caught:
        fine.to_host(20)
    assert caught.value.field == "n_bins"
    with pytest.raises(ConfigurationError):
        cells_of(0)
