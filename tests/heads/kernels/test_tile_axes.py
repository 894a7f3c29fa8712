"""One text for tiles of many rows and of one."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from heads.kernels.tile_axes import across, down

pytestmark = pytest.mark.torch


@triton.jit
def _outer(ids, rows, out, SIZE: tl.constexpr, BLOCK_B: tl.constexpr, ROWS: tl.constexpr):
    at = tl.arange(0, SIZE)
    row = tl.arange(0, BLOCK_B) if ROWS else 0
    tile = down(tl.load(ids + at), ROWS) * across(tl.load(rows + row), ROWS)
    tl.store(out + row, tl.sum(tile, axis=0))


@pytest.mark.parametrize("rows", [1, 4])
def test_reductions_leave_one_number_a_row(rows: int, device: torch.device) -> None:
    ids = torch.arange(8.0, device=device)
    factors = torch.arange(1.0, rows + 1, device=device)
    out = torch.empty(rows, device=device)
    _outer[(1,)](ids, factors, out, 8, rows, rows > 1)
    assert torch.equal(out, 28.0 * factors)
