# mypy: allow-untyped-decorators
"""A program's walk over its draft ids: logits in registers, reduced to a word and a partial sum.

In two forms (:mod:`heads.kernels.tile_axes`). With tensor cores W2 is the left operand of the dot,
whose 64 or 128 rows are what the hardware wants, and the batch is the side that may be narrow. A
single row has nothing to share W2 with, so products are summed by lanes.

Letters: B rows, γ positions, V target vocabulary, V' ids of this shard, r rank.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from heads.kernels.counter_based_random import gumbel_tile
from heads.kernels.deterministic_argmax import LEAST_WORD, packed_words
from heads.kernels.drafted_tokens import previous_tokens
from heads.kernels.elementary_functions import finite_or_zero
from heads.kernels.tile_axes import across, down

_INFINITY = tl.constexpr(float("inf"))


@triton.jit
def sweep(
    base: tl.tuple,  # U [B, γ, V'], strides of rows and positions
    codes: tl.tuple,  # W1 [V, r], its row stride, latents [B, r] or None, their row stride
    w2: tl.tuple,  # W2 [V', r], its row stride, scales [V'] or None
    noise: tl.tuple,  # temperatures [B] float32, request keys and positions [B] int64
    chain: tl.tuple,  # see heads.kernels.drafted_tokens
    kept: tl.tuple,  # corrected logits [B, γ, V'] or None, strides of rows and positions
    index: tl.tensor,  # k − 1
    shard_size: tl.tensor,  # V'
    vocabulary_offset: tl.tensor,  # draft id of the shard's first row
    program: tl.tensor,
    row: tl.tensor,  # [BLOCK_B] int32, or a scalar without USE_DOT
    live: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    TILES: tl.constexpr,
    USE_DOT: tl.constexpr,
    SAMPLED: tl.constexpr,
    SUMMED: tl.constexpr,  # whether sums of exponentials are wanted
    SERPENTINE: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> tl.tuple:
    """Best word, largest logit and sum of exponentials of a program's ids; shaped as ``row``.

    The last two stay −∞ and 0 without SUMMED.
    """
    best = (row * 0).to(tl.int64) + LEAST_WORD
    largest = (row * 0).to(tl.float32) - _INFINITY
    total = (row * 0).to(tl.float32)
    temperatures, request_keys, positions = noise
    temperature = tl.load(temperatures + row, mask=live, other=0.0)
    tiles = tl.cdiv(shard_size, BLOCK_V)
    for turn in range(TILES):
        tile = program * TILES + turn
        if SERPENTINE:
            tile = tl.where(index % 2 == 1, tiles - 1 - tile, tile)
        # Past either end no id is inside.
        ids = tile * BLOCK_V + tl.arange(0, BLOCK_V)
        inside = (ids >= 0) & (ids < shard_size)
        mask = down(inside, USE_DOT) & across(live, USE_DOT)
        place = _place(base, row, index, ids, USE_DOT)
        known = tl.minimum(tl.maximum(ids, 0), shard_size - 1)
        # fmt: off
        logits = _corrected_logits(
            place, mask, known, codes, w2, chain, index, row, live,
            RANK, BLOCK_V, BLOCK_B, BLOCK_R, USE_DOT, DEPENDENT)
        # fmt: on
        if kept[0] is not None:
            stored = logits.to(kept[0].dtype.element_ty)
            tl.store(_place(kept, row, index, ids, USE_DOT), stored, mask=mask)
            logits = stored.to(tl.float32)  # tokens come from what is kept
        if SUMMED:
            warm = tl.where(temperature > 0.0, temperature, 1.0)
            scaled = tl.where(mask, logits / across(warm, USE_DOT), -_INFINITY)
            new = tl.maximum(largest, tl.max(scaled, axis=0))
            top = finite_or_zero(new)
            grown = tl.sum(tl.exp(scaled - across(top, USE_DOT)), axis=0)
            total = total * tl.exp(largest - top) + grown
            largest = new
        if SAMPLED:
            keys = tl.load(request_keys + row, mask=live, other=0)
            where = tl.load(positions + row, mask=live, other=0)
            group = (vocabulary_offset + tile * BLOCK_V) // 4
            gumbel = gumbel_tile(keys, where, index + 1, group, BLOCK_V // 4, BLOCK_B, USE_DOT)
            logits += across(temperature, USE_DOT) * gumbel
        words = packed_words(logits, down(ids + vocabulary_offset, USE_DOT))
        words = tl.where(down(inside, USE_DOT), words, LEAST_WORD)
        best = tl.maximum(best, tl.max(words, axis=0))
    return best, largest, total


@triton.jit
def _corrected_logits(
    base_place: tl.tensor,
    mask: tl.tensor,
    ids: tl.tensor,
    codes: tl.tuple,
    w2: tl.tuple,
    chain: tl.tuple,
    index: tl.tensor,
    row: tl.tensor,
    live: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    USE_DOT: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> tl.tensor:
    """U_k + e_k · W2ᵀ of a tile; [BLOCK_V, BLOCK_B] or [BLOCK_V] float32."""
    weights, weights_row, scales = w2
    w1, w1_row, latents, latents_row = codes
    places = weights + ids.to(tl.int64)[:, None] * weights_row
    # What no earlier position writes is read before the wait: the launch gap hides behind it.
    chunk = _chunk(places, 0, RANK, BLOCK_R)
    base = tl.load(base_place, mask=mask, other=-_INFINITY, eviction_policy="evict_first")
    if DEPENDENT:
        cuda.gdc_wait()
    if latents is not None:
        code = latents + row * latents_row
    else:
        code = w1 + previous_tokens(chain, index, row, live) * w1_row
    shape: tl.constexpr = [BLOCK_V, BLOCK_B] if USE_DOT else [BLOCK_V]
    bias = tl.zeros(shape, tl.float32)
    bias = _add_product(bias, chunk, code, 0, live, RANK, BLOCK_R, USE_DOT)
    for begin in range(BLOCK_R, RANK, BLOCK_R):
        chunk = _chunk(places, begin, RANK, BLOCK_R)
        bias = _add_product(bias, chunk, code, begin, live, RANK, BLOCK_R, USE_DOT)
    if scales is not None:
        bias *= down(tl.load(scales + ids), USE_DOT)
    return base.to(tl.float32) + bias


@triton.jit
def _chunk(
    places: tl.tensor, begin: tl.tensor, RANK: tl.constexpr, BLOCK_R: tl.constexpr
) -> tl.tensor:
    """[BLOCK_V, BLOCK_R] of W2."""
    at = begin + tl.arange(0, BLOCK_R)
    if RANK % BLOCK_R == 0:
        chunk = tl.load(places + at[None, :])
    else:
        chunk = tl.load(places + at[None, :], mask=(at < RANK)[None, :], other=0.0)
    return chunk


@triton.jit
def _add_product(
    bias: tl.tensor,
    chunk: tl.tensor,
    code: tl.tensor,  # pointers, shaped as the rows
    begin: tl.tensor,
    live: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
    USE_DOT: tl.constexpr,
) -> tl.tensor:
    """Bias so far plus a chunk of W2 times the rows' codes; shaped as ``bias``.

    Codes take the type of the operand in both forms, so that both round them alike.
    """
    at = begin + tl.arange(0, BLOCK_R)
    left = _operand(chunk)
    if USE_DOT:
        mask = live[None, :] & (at < RANK)[:, None]
        right = tl.load(code[None, :] + at[:, None], mask=mask, other=0.0)
        bias = tl.dot(left, right.to(left.dtype), bias, input_precision="ieee")
    else:
        right = tl.load(code + at, mask=live & (at < RANK), other=0.0).to(left.dtype)
        bias += tl.sum(left.to(tl.float32) * right.to(tl.float32)[None, :], axis=1)
    return bias


@triton.jit
def _operand(chunk: tl.tensor) -> tl.tensor:
    """W2 as the dot takes it: float32, or bfloat16, which holds every float8 exactly."""
    if chunk.dtype == tl.uint8:
        # Bytes of e4m3, for hardware without the type: sign, exponent and mantissa fall into the
        # lowest exponents of a float32, subnormal ones too, and 2^(127 − 7) lifts them.
        bits = chunk.to(tl.int32)
        bits = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        operand = (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(tl.bfloat16)
    elif chunk.dtype == tl.float32:
        operand = chunk
    else:
        operand = chunk.to(tl.bfloat16)
    return operand


@triton.jit
def _place(
    array: tl.tuple, row: tl.tensor, index: tl.tensor, ids: tl.tensor, USE_DOT: tl.constexpr
) -> tl.tensor:
    """Where a tile lies in [B, γ, V']."""
    pointer, row_stride, position_stride = array
    first = row.to(tl.int64) * row_stride + index * position_stride
    return pointer + (across(first, USE_DOT) + down(ids, USE_DOT))
