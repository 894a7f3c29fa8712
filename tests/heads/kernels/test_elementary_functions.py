"""Sigmoid and tanh over all of float32."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from heads.kernels.elementary_functions import finite_or_zero, sigmoid, tanh

pytestmark = pytest.mark.torch


@triton.jit
def _functions(x, first, second, third, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    value = tl.load(x + at)
    tl.store(first + at, sigmoid(value))
    tl.store(second + at, tanh(value))
    tl.store(third + at, finite_or_zero(value))


def test_against_float64(device: torch.device) -> None:
    x = torch.linspace(-30.0, 30.0, 1 << 12)
    special = [0.0, -0.0, 1e-30, -1e4, 1e4, -3e38, 3e38, -float("inf"), float("inf"), float("nan")]
    x[: len(special)] = torch.tensor(special)
    x = x.to(device)
    found = [torch.empty_like(x) for _ in range(3)]
    _functions[(1,)](x, *found, len(x))
    wide = x.double()
    assert torch.allclose(found[0].double(), torch.sigmoid(wide), atol=2e-7, equal_nan=True)
    assert torch.allclose(found[1].double(), torch.tanh(wide), atol=2e-7, equal_nan=True)
    assert torch.equal(found[2], x.nan_to_num(0.0, 0.0, 0.0))
