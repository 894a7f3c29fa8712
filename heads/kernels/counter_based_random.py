# mypy: allow-untyped-decorators
"""Gumbel noise inside a kernel, the same bits as :mod:`heads.reference.counter_based_random`.

That module defines the stream; this one repeats its operations in its order. Kernels that call it
must be compiled with ``enable_fp_fusion=False``: a contracted multiply-add rounds once instead of
twice and would move near-ties between devices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from heads.reference import counter_based_random as stream

_TAG = tl.constexpr(stream.DRAFT_STREAM)
_SQRT_HALF_BITS = tl.constexpr(stream.SQRT_HALF_BITS)
_SMALL_UNIFORM = tl.constexpr(stream.SMALL_UNIFORM)
_LOG_2 = tl.constexpr(stream.LOG_2)
_P0, _P1, _P2, _P3, _P4, _P5, _P6 = (tl.constexpr(c) for c in stream.LOG_COEFFICIENTS)


@triton.jit
def gumbel_tile(
    request_keys: tl.tensor,  # [BLOCK_B] int64, or a scalar
    positions: tl.tensor,  # [BLOCK_B] int64, of the anchors, or a scalar
    step: tl.tensor,  # int32, k = 1 … γ
    first_group: tl.tensor,  # int32, first draft id of the tile // 4
    GROUPS: tl.constexpr,  # ids of the tile // 4
    BLOCK_B: tl.constexpr,
    MANY: tl.constexpr,  # whether keys and positions are vectors
) -> tl.tensor:
    """g of a tile of draft ids; [4 · GROUPS, BLOCK_B], or [4 · GROUPS], float32 and finite."""
    groups = first_group + tl.arange(0, GROUPS)
    positions = (positions & 0xFFFFFFFF).to(tl.uint32)
    step = step.to(tl.uint32)
    # Rounds start on what varies least and broadcast as they mix: ids and rows meet in round one.
    if MANY:
        tag = tl.full([1, 1], _TAG, tl.uint32)
        w0, w1, w2, w3 = tl.philox(
            request_keys[None, :], groups[:, None], positions[None, :], step, tag
        )
        pairs = tl.join(tl.join(w0, w2), tl.join(w1, w3))  # [GROUPS, BLOCK_B, 2, 2], in order
        words = tl.reshape(tl.permute(pairs, (0, 2, 3, 1)), [4 * GROUPS, BLOCK_B])
    else:
        tag = tl.full([1], _TAG, tl.uint32)
        w0, w1, w2, w3 = tl.philox(request_keys, groups, positions, step, tag)
        words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [4 * GROUPS])
    return gumbel_of_words(words)


@triton.jit
def gumbel_of_words(
    words: tl.tensor,  # [...] uint32
) -> tl.tensor:
    """Standard Gumbel numbers of 32-bit words; float32 within [−3.2, 22.9]."""
    lower = words < 0x80000000
    nearest = tl.where(lower, words, words ^ 0xFFFFFFFF)
    s = (nearest.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2⁻³²
    f, exponent = _split(tl.where(lower, 1.0 - s, s))
    small = lower & (s < _SMALL_UNIFORM)
    f = tl.where(small, -s, f)
    exponent = tl.where(small, 0.0, exponent)
    f, exponent = _split(-_log_of_parts(f, exponent))
    return -_log_of_parts(f, exponent)


@triton.jit
def _split(x: tl.tensor) -> tl.tuple:
    """x = 2^exponent · (1 + f) with 1 + f in [√½, √2)."""
    offset = x.to(tl.int32, bitcast=True) - _SQRT_HALF_BITS
    mantissa = (offset & 0x7FFFFF) + _SQRT_HALF_BITS
    return mantissa.to(tl.float32, bitcast=True) - 1.0, (offset >> 23).to(tl.float32)


@triton.jit
def _log_of_parts(f: tl.tensor, exponent: tl.tensor) -> tl.tensor:
    """log(2^exponent · (1 + f))."""
    p = f * _P6 + _P5
    p = p * f + _P4
    p = p * f + _P3
    p = p * f + _P2
    p = p * f + _P1
    p = p * f + _P0
    square = f * f
    return ((p * (square * f) - 0.5 * square) + f) + exponent * _LOG_2
