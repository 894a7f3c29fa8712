# mypy: allow-untyped-decorators
"""Packed words of :mod:`heads.reference.deterministic_argmax` inside a kernel.

The largest word is found by maxima alone: within a tile, and over programs by a 64-bit atomic
maximum, whose result depends on no order of arrival. No partial results, no second pass.
"""

from __future__ import annotations

import triton
import triton.language as tl

from heads.reference import deterministic_argmax as words_of

LEAST_WORD = tl.constexpr(words_of.LEAST_WORD)
_ID_BITS = tl.constexpr(words_of.ID_BITS)


@triton.jit
def packed_words(
    scores: tl.tensor,  # [...] float32
    ids: tl.tensor,  # int32 that broadcasts, 0 … 2³¹ − 1
) -> tl.tensor:
    """Words whose order is that of the scores, then of falling ids; [...] int64."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & _ID_BITS)
    ordered = tl.where(scores != scores, _ID_BITS, ordered)
    return (ordered.to(tl.int64) << 32) | (ids ^ _ID_BITS).to(tl.int64)


@triton.jit
def decoded_ids(
    words: tl.tensor,  # [...] int64
) -> tl.tensor:
    """Ids of packed words; [...] int64."""
    return (words & _ID_BITS) ^ _ID_BITS
