"""Noise inside a kernel has the bits of the eager stream."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from heads.kernels.counter_based_random import gumbel_of_words, gumbel_tile
from heads.reference.counter_based_random import gumbel_noise
from heads.reference.counter_based_random import gumbel_of_words as eager_gumbel_of_words

pytestmark = pytest.mark.torch


@triton.jit
def _tile(keys, positions, out, step, first, GROUPS: tl.constexpr, BLOCK_B: tl.constexpr):
    row, at = tl.arange(0, BLOCK_B), tl.arange(0, 4 * GROUPS)
    key, position = tl.load(keys + row), tl.load(positions + row)
    noise = gumbel_tile(key, position, step, first // 4, GROUPS, BLOCK_B, True)
    tl.store(out + row[None, :] * (4 * GROUPS) + at[:, None], noise)


@triton.jit
def _single(keys, positions, out, step, first, GROUPS: tl.constexpr):
    noise = gumbel_tile(tl.load(keys), tl.load(positions), step, first // 4, GROUPS, 1, False)
    tl.store(out + tl.arange(0, 4 * GROUPS), noise)


@triton.jit
def _words(words, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out + at, gumbel_of_words(tl.load(words + at).to(tl.uint32)))


@pytest.mark.parametrize("first", [0, 1000, 151_872])
def test_tiles_have_the_bits_of_the_twin(first: int, device: torch.device) -> None:
    g = torch.Generator().manual_seed(first)
    keys = torch.randint(-(1 << 63), (1 << 63) - 1, (16,), generator=g).to(device)
    positions = torch.randint(0, 1 << 32, (16,), generator=g).to(device)
    expected = gumbel_noise(keys, positions, 5, first, 64)
    found = torch.empty(16, 64, device=device)
    _tile[(1,)](keys, positions, found, 5, first, 16, 16, enable_fp_fusion=False)
    assert torch.equal(found, expected)
    row = torch.empty(64, device=device)
    _single[(1,)](keys, positions, row, 5, first, 16, enable_fp_fusion=False)
    assert torch.equal(row, expected[0])


def test_every_region_of_a_word_has_the_bits_of_the_twin(device: torch.device) -> None:
    g = torch.Generator().manual_seed(0)
    words = torch.randint(0, 1 << 32, (1 << 14,), generator=g)
    edges = torch.tensor([0, 1 << 30, 1 << 31, (1 << 32) - 1])
    near = torch.cat([edges + d for d in range(-3, 4)]).clamp(0, (1 << 32) - 1)
    words[: len(near)] = near
    words[100:1000] >>= 20  # the winning tail
    words = words.to(device)
    found = torch.empty(len(words), device=device)
    _words[(1,)](words, found, len(words), enable_fp_fusion=False)
    assert torch.equal(found, eager_gumbel_of_words(words))
