"""Words packed inside a kernel have the bits of the eager ones."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from heads.kernels.deterministic_argmax import decoded_ids, packed_words
from heads.reference.deterministic_argmax import packed_words as eager_packed_words

pytestmark = pytest.mark.torch


@triton.jit
def _pack(scores, ids, words, decoded, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    packed = packed_words(tl.load(scores + at), tl.load(ids + at))
    tl.store(words + at, packed)
    tl.store(decoded + at, decoded_ids(packed))


def test_words_have_the_bits_of_the_twin(device: torch.device) -> None:
    bits = torch.randint(
        -(1 << 31), 1 << 31, (1 << 12,), generator=torch.Generator().manual_seed(0)
    )
    # Zeros, infinities, subnormal numbers and NaN of both signs.
    bits[:10] = torch.tensor([0, -(1 << 31), 0x7F800000, -8388608, 1, -1, 0x7FC00000, 5, -5, 9])
    scores = bits.int().view(torch.float32).to(device)
    ids = torch.arange(len(bits), device=device) * 499_979 % (1 << 31)
    words, decoded = torch.empty_like(ids), torch.empty_like(ids)
    _pack[(1,)](scores, ids.int(), words, decoded, len(bits))
    assert torch.equal(words, eager_packed_words(scores, ids))
    assert torch.equal(decoded, ids)
