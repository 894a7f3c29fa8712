# mypy: allow-untyped-decorators
"""Tokens and log-sum-exp of positions whose programs have ended, read from what they left.

A *chain* is what leads from one position to the next,

    (anchors [B] int64, words [γ, capacity] int64, row stride of words,
     draft_to_target [V' of all shards] int64 or None, V)

and *partials* are (array [2, 2, programs, capacity] float32 or None, stride of a turn, stride of a
kind): largest logit and sum of exponentials of every program, positions in turn.
"""

from __future__ import annotations

import triton
import triton.language as tl

from heads.kernels.deterministic_argmax import decoded_ids
from heads.kernels.elementary_functions import finite_or_zero
from heads.kernels.tile_axes import across, down

_INFINITY = tl.constexpr(float("inf"))
# Partial sums merged at a time, of a single row and of all rows of a tile. The order of merging
# follows from them, so they are part of what makes results repeat.
_MERGED_OF_ONE = tl.constexpr(2048)
_MERGED_OF_MANY = tl.constexpr(4096)


@triton.jit
def previous_tokens(
    chain: tl.tuple,
    index: tl.tensor,  # k − 1
    row: tl.tensor,  # [BLOCK_B] int32, or a scalar
    live: tl.tensor,
) -> tl.tensor:
    """Target ids x_{k−1}, always within the vocabulary; int64, shaped as ``row``."""
    anchors, words, words_stride, draft_to_target, vocabulary = chain
    if index == 0:
        token = tl.load(anchors + row, mask=live, other=0)
        token = tl.minimum(tl.maximum(token, 0), vocabulary - 1)
    else:
        token = _draft_ids(words + (index - 1) * words_stride + row, live)
        token = _target_ids(token, draft_to_target, live)
    return token


@triton.jit
def finish_position(
    chain: tl.tuple,
    partials: tl.tuple,
    results: tl.tuple,  # tokens, draft ids [B, γ] int64; log-sum-exps [B, γ] float32 or None
    index: tl.tensor,  # k − 1
    gamma: tl.tensor,
    programs: tl.tensor,
    row: tl.tensor,  # [BLOCK_B] int32, or a scalar without ROWS
    live: tl.tensor,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """Write tokens and log-sum-exp of a position whose programs have all left their words."""
    _, words, words_stride, draft_to_target, _ = chain
    tokens, draft_ids, log_sum_exps = results
    sums, turn, kind = partials
    ids = _draft_ids(words + index * words_stride + row, live)
    at = row * gamma + index
    tl.store(draft_ids + at, ids, mask=live)
    tl.store(tokens + at, _target_ids(ids, draft_to_target, live), mask=live)
    if sums is not None:
        total = _merged_log_sum_exp(
            sums + (index % 2) * turn + row, kind, words_stride, programs, live, BLOCK_B, ROWS
        )
        tl.store(log_sum_exps + at, total, mask=live)


@triton.jit
def _merged_log_sum_exp(
    first: tl.tensor,  # pointers to the first program's largest logit, shaped as the rows
    kind: tl.tensor,
    stride: tl.tensor,  # from one program to the next
    programs: tl.tensor,
    live: tl.tensor,
    BLOCK_B: tl.constexpr,
    ROWS: tl.constexpr,
) -> tl.tensor:
    """Log-sum-exp over all programs, always in the same order; float32, shaped as the rows."""
    count: tl.constexpr = _MERGED_OF_MANY // BLOCK_B if ROWS else _MERGED_OF_ONE
    shape: tl.constexpr = [count, BLOCK_B] if ROWS else [count]
    largest = tl.full(shape, -_INFINITY, tl.float32)
    total = tl.zeros(shape, tl.float32)
    for begin in range(0, programs, count):
        program = begin + tl.arange(0, count)
        mask = down(program < programs, ROWS) & across(live, ROWS)
        place = across(first, ROWS) + down(program * stride, ROWS)
        found = tl.load(place, mask=mask, other=-_INFINITY, cache_modifier=".cg")
        part = tl.load(place + kind, mask=mask, other=0.0, cache_modifier=".cg")
        new = tl.maximum(largest, found)
        top = finite_or_zero(new)
        total = total * tl.exp(largest - top) + part * tl.exp(found - top)
        largest = new
    top = finite_or_zero(tl.max(largest, axis=0))
    total = tl.sum(total * tl.exp(largest - across(top, ROWS)), axis=0)
    return tl.log(tl.where(live, total, 1.0)) + top


@triton.jit
def _draft_ids(words: tl.tensor, live: tl.tensor) -> tl.tensor:
    # Past the first level of cache: other processors wrote them, perhaps in this launch.
    return decoded_ids(tl.load(words, mask=live, other=0, cache_modifier=".cg"))


@triton.jit
def _target_ids(ids: tl.tensor, draft_to_target: tl.tensor, live: tl.tensor) -> tl.tensor:
    if draft_to_target is not None:
        ids = tl.load(draft_to_target + ids, mask=live, other=0)
    return ids
