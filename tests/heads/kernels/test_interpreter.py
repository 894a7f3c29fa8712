"""The mended interpreter computes bfloat16 as torch does, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from tests.heads.kernels import interpreter

pytestmark = pytest.mark.torch

SIZE = 256


@triton.jit
def _binary(x, y, out, OPERATION: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if OPERATION == 0:
        result = a + b
    elif OPERATION == 1:
        result = a * b
    elif OPERATION == 2:
        result = tl.where(a < b, a, b)
    else:
        result = -a
    tl.store(out + at, result)


@triton.jit
def _dot(x, y, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tile = at[:, None] * SIZE + at[None, :]
    tl.store(out + tile, tl.dot(tl.load(x + tile), tl.load(y + tile)))


@triton.jit
def _largest_and_sum(x, largest, total, SIZE: tl.constexpr):
    values = tl.load(x + tl.arange(0, SIZE))
    tl.store(largest, tl.max(values, axis=0))
    tl.store(total, tl.sum(values.to(tl.float32), axis=0))


@triton.jit
def _cast(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


def numbers(seed: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(SIZE, generator=generator).to(device) * 3


@triton.jit
def _where_asked(x, out, rows, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    mask = (tl.program_id(0) < rows) & (at < 10)
    tl.store(out + at, tl.load(x + at, mask=mask, other=0.0), mask=mask)


@pytest.mark.parametrize("operation", [0, 1, 2, 3])
def test_bfloat16_arithmetic_is_rounded_to_nearest(operation: int, device: torch.device) -> None:
    x, y = numbers(0, device).bfloat16(), numbers(1, device).bfloat16()
    expected = (x + y, x * y, torch.minimum(x, y), -x)[operation]
    out = torch.empty_like(x)
    _binary[(1,)](x, y, out, operation, SIZE)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_casts_to_bfloat16_and_back(dtype: torch.dtype, device: torch.device) -> None:
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 65504.0, 1e-7], device=device)
    x = torch.cat([special, numbers(2, device)[: SIZE - 6]]).to(dtype)
    narrow, wide = torch.empty(SIZE, dtype=torch.bfloat16, device=device), torch.empty_like(x)
    _cast[(1,)](x, narrow, SIZE)
    assert torch.equal(narrow, x.float().bfloat16())
    _cast[(1,)](narrow, wide, SIZE)
    assert torch.equal(wide, narrow.to(dtype))


def test_every_float32_rounds_as_torch_does() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    finite = values[~values.isnan()]
    words = torch.from_numpy(interpreter.narrow(finite.numpy()).view(np.int16))
    assert torch.equal(words.view(torch.bfloat16), finite.bfloat16())
    assert np.isnan(interpreter.widen(interpreter.narrow(np.array([np.nan, -np.nan])))).all()


def test_bfloat16_dot_and_reductions(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(16, 16, generator=generator).to(device).bfloat16() for _ in range(2))
    out = torch.empty(16, 16, device=device)
    _dot[(1,)](x, y, out, 16)
    assert torch.allclose(out, x.float() @ y.float(), atol=1e-5)
    row = -numbers(4, device).abs().bfloat16()  # of all-negative words the raw maximum is wrong
    largest = torch.empty(1, dtype=torch.bfloat16, device=device)
    total = torch.empty(1, device=device)
    _largest_and_sum[(1,)](row, largest, total, SIZE)
    assert torch.equal(largest[0], row.max())
    assert torch.allclose(total[0], row.float().sum(), rtol=1e-5)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_scalar_condition_is_a_mask(rows: int, device: torch.device) -> None:
    x = torch.ones(SIZE, device=device)
    out = torch.zeros_like(x)
    _where_asked[(1,)](x, out, rows, SIZE)
    assert out.sum().item() == 10 * rows
