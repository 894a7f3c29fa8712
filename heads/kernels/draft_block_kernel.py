# mypy: allow-untyped-decorators
"""Kernels of the draft block: preparation, and one position with everything that belongs to it.

``prepare_kernel`` resets the scratch and takes the confidence head's hidden part, w_h · h + b, of
all positions: it depends on no token, so it stays off the chain of positions.

``position_kernel`` has, for each block of rows, one program for bookkeeping and one for every few
tiles of draft ids. A tile program reads its rows of W2 once for all rows of the block and keeps
logits in registers: bias, base logit, noise, order and log-sum-exp are never written out. What it
leaves is one atomic maximum a row and, where log-sum-exp is wanted, a partial sum.

=====================  =======================================================================
what                   who computes it
=====================  =======================================================================
x_{k−1}                every program, from the words that position k − 1 left
W1[x_{k−1}]            every program (512 bytes a row from L2): no embedding launch
z_k, c_k, a_k          the bookkeeping program of position k, hidden under the stream of W2
tokens, log-sum-exp    the bookkeeping program of position k + 1; of the last position the tile
                       program that arrives last
=====================  =======================================================================

No program waits for another one. Words only grow, and partial sums are merged in the order of
programs, so results are the same bits whatever the scheduling.

Letters: B rows, γ positions, V target vocabulary, V' ids of this shard, r rank, D hidden size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from heads.kernels.deterministic_argmax import LEAST_WORD
from heads.kernels.drafted_tokens import finish_position, previous_tokens
from heads.kernels.elementary_functions import sigmoid
from heads.kernels.tile_axes import across, down
from heads.kernels.vocabulary_sweep import sweep


@triton.jit(do_not_specialize=("rows", "gamma"))
def prepare_kernel(
    hidden_ptr: tl.tensor,  # [B, γ, D]
    hidden_row: tl.tensor,
    hidden_position: tl.tensor,
    confidence_hidden_ptr: tl.tensor,  # [D] float32, or None
    confidence_bias_ptr: tl.tensor,  # [1] float32, or None
    confidence_base_ptr: tl.tensor,  # [B, γ] float32
    words_ptr: tl.tensor,  # [γ, capacity] int64
    words_stride: tl.tensor,
    arrivals_ptr: tl.tensor,  # [B] int32
    rows: tl.tensor,
    gamma: tl.tensor,
    width: tl.tensor,  # D
    BLOCK_B: tl.constexpr,  # pairs of row and position
    BLOCK_D: tl.constexpr,
) -> None:
    """Reset words and arrivals; w_h · h_k + b of every row and position."""
    pair = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    row, position = pair // gamma, pair % gamma
    live = row < rows
    least = tl.full([BLOCK_B], LEAST_WORD, tl.int64)
    tl.store(words_ptr + position * words_stride + row, least, mask=live)
    tl.store(arrivals_ptr + row, tl.zeros([BLOCK_B], tl.int32), mask=live & (position == 0))
    if confidence_hidden_ptr is not None:
        total = tl.zeros([BLOCK_B, BLOCK_D], tl.float32)
        first = row.to(tl.int64) * hidden_row + position * hidden_position
        for begin in range(0, width, BLOCK_D):
            at = begin + tl.arange(0, BLOCK_D)
            mask = live[:, None] & (at < width)[None, :]
            hidden = tl.load(hidden_ptr + first[:, None] + at[None, :], mask=mask, other=0.0)
            weight = tl.load(confidence_hidden_ptr + at, mask=at < width, other=0.0)
            total += hidden.to(tl.float32) * weight[None, :]
        base = tl.sum(total, axis=1) + tl.load(confidence_bias_ptr)
        tl.store(confidence_base_ptr + pair, base, mask=live)


# One build for every position, batch and shard: what changes between launches is not specialised.
@triton.jit(
    do_not_specialize=(
        "slopes_row",
        "intercepts_row",
        "index",
        "gamma",
        "vocabulary",
        "vocabulary_offset",
        "programs",
    ),
    do_not_specialize_on_alignment=("rows", "row_blocks"),  # but on 1: a single row has no mask
)
def position_kernel(
    base_ptr: tl.tensor,  # [B, γ, V'] U
    base_row: tl.tensor,
    base_position: tl.tensor,
    w1_ptr: tl.tensor,  # [V, r]
    w1_row: tl.tensor,
    latent_ptr: tl.tensor,  # [B, r] float32 of gated and RNN heads; else None
    latent_row: tl.tensor,
    w2_ptr: tl.tensor,  # [V', r]
    w2_row: tl.tensor,
    w2_scales_ptr: tl.tensor,  # [V'] float32, or None
    anchors_ptr: tl.tensor,  # [B] int64
    temperatures_ptr: tl.tensor,  # [B] float32
    request_keys_ptr: tl.tensor,  # [B] int64
    positions_ptr: tl.tensor,  # [B] int64
    slopes_ptr: tl.tensor,  # [γ] or [B, γ] float32
    slopes_row: tl.tensor,
    intercepts_ptr: tl.tensor,
    intercepts_row: tl.tensor,
    confidence_base_ptr: tl.tensor,  # [B, γ] float32
    confidence_code_ptr: tl.tensor,  # [r] float32, or None
    draft_to_target_ptr: tl.tensor,  # [V' of all shards] int64, or None
    words_ptr: tl.tensor,  # [γ, capacity] int64
    words_stride: tl.tensor,
    arrivals_ptr: tl.tensor,  # [B] int32
    partials_ptr: tl.tensor,  # [2, 2, programs, capacity] float32, or None
    partials_turn: tl.tensor,
    partials_kind: tl.tensor,
    tokens_ptr: tl.tensor,  # [B, γ] int64
    draft_ids_ptr: tl.tensor,  # [B, γ] int64
    confidence_logits_ptr: tl.tensor,  # [B, γ] float32, or None
    confidences_ptr: tl.tensor,  # [B, γ] float32
    survival_ptr: tl.tensor,  # [B, γ] float32
    logits_ptr: tl.tensor,  # [B, γ, V'], or None
    logits_row: tl.tensor,
    logits_position: tl.tensor,
    log_sum_exp_ptr: tl.tensor,  # [B, γ] float32, or None
    index: tl.tensor,  # k − 1
    rows: tl.tensor,
    gamma: tl.tensor,
    shard_size: tl.tensor,  # V'
    vocabulary: tl.tensor,  # V
    vocabulary_offset: tl.tensor,  # draft id of the shard's first row; a multiple of 4
    programs: tl.tensor,  # tile programs of one block of rows
    row_blocks: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    TILES: tl.constexpr,  # tiles of one program
    USE_DOT: tl.constexpr,  # tensor cores; False: one row a program, sums of products
    SAMPLED: tl.constexpr,
    SERPENTINE: tl.constexpr,  # odd positions sweep W2 backwards: its end is still in L2
    DEPENDENT: tl.constexpr,  # programmatic dependent launch
) -> None:
    """Position ``index`` + 1 of every row."""
    program = tl.program_id(0)
    row_block = program % row_blocks
    slot = program // row_blocks - 1
    row = row_block * BLOCK_B + tl.arange(0, BLOCK_B) if USE_DOT else row_block
    live = row < rows
    chain = (anchors_ptr, words_ptr, words_stride, draft_to_target_ptr, vocabulary)
    partials = (partials_ptr, partials_turn, partials_kind)
    results = (tokens_ptr, draft_ids_ptr, log_sum_exp_ptr)
    if DEPENDENT:
        cuda.gdc_launch_dependents()
    if slot < 0:
        if DEPENDENT:
            cuda.gdc_wait()
        if confidence_logits_ptr is not None:
            logit = tl.load(confidence_base_ptr + row * gamma + index, mask=live, other=0.0)
            if confidence_code_ptr is not None:
                code = w1_ptr + previous_tokens(chain, index, row, live) * w1_row
                logit += _code_part(
                    code, confidence_code_ptr, live, RANK, BLOCK_B, BLOCK_R, USE_DOT
                )
            slope = tl.load(slopes_ptr + row * slopes_row + index, mask=live, other=0.0)
            intercept = tl.load(intercepts_ptr + row * intercepts_row + index, mask=live, other=0.0)
            written = (confidence_logits_ptr, confidences_ptr, survival_ptr)
            _store_confidence(written, logit, slope, intercept, row * gamma + index, index, live)
        if index > 0:
            finish_position(
                chain, partials, results, index - 1, gamma, programs, row, live, BLOCK_B, USE_DOT
            )
    else:
        # fmt: off
        best, largest, total = sweep(
            (base_ptr, base_row, base_position), (w1_ptr, w1_row, latent_ptr, latent_row),
            (w2_ptr, w2_row, w2_scales_ptr), (temperatures_ptr, request_keys_ptr, positions_ptr),
            chain, (logits_ptr, logits_row, logits_position), index, shard_size, vocabulary_offset,
            slot, row, live, RANK, BLOCK_V, BLOCK_B, BLOCK_R, TILES, USE_DOT, SAMPLED,
            partials_ptr is not None, SERPENTINE, DEPENDENT)
        # fmt: on
        place = words_ptr + index * words_stride + row
        tl.atomic_max(place, best, mask=live, sem="relaxed")
        if partials_ptr is not None:
            place = partials_ptr + (index % 2) * partials_turn + slot * words_stride + row
            tl.store(place, largest, mask=live)
            tl.store(place + partials_kind, total, mask=live)
        if index == gamma - 1:
            # Every thread's results must be out before one thread says so.
            tl.debug_barrier()
            arrived = tl.atomic_add(arrivals_ptr + row_block, 1, sem="acq_rel")
            if arrived == programs - 1:
                finish_position(
                    chain, partials, results, index, gamma, programs, row, live, BLOCK_B, USE_DOT
                )


@triton.jit
def _code_part(
    code: tl.tensor,  # [BLOCK_B] pointers to W1[x_{k−1}], or one
    weights: tl.tensor,  # [r] float32
    live: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    USE_DOT: tl.constexpr,
) -> tl.tensor:
    """w_e · W1[x_{k−1}]; [BLOCK_B] float32, or one."""
    shape: tl.constexpr = [BLOCK_R, BLOCK_B] if USE_DOT else [BLOCK_R]
    total = tl.zeros(shape, tl.float32)
    for begin in range(0, RANK, BLOCK_R):
        at = begin + tl.arange(0, BLOCK_R)
        mask = down(at < RANK, USE_DOT) & across(live, USE_DOT)
        place = across(code, USE_DOT) + down(at, USE_DOT)
        weight = tl.load(weights + at, mask=at < RANK, other=0.0)
        values = tl.load(place, mask=mask, other=0.0).to(tl.float32)
        total += values * down(weight, USE_DOT)
    return tl.sum(total, axis=0)


@triton.jit
def _store_confidence(
    results: tl.tuple,  # raw logits, confidences and survival [B, γ] float32
    logit: tl.tensor,  # [BLOCK_B] float32, or one: z_k
    slope: tl.tensor,
    intercept: tl.tensor,
    at: tl.tensor,
    index: tl.tensor,
    live: tl.tensor,
) -> None:
    """z_k, c_k and a_k of the rows."""
    logits, confidences, survival = results
    confidence = sigmoid(slope * logit + intercept)
    before = tl.load(survival + at - 1, mask=live & (index > 0), other=1.0)
    tl.store(logits + at, logit, mask=live)
    tl.store(confidences + at, confidence, mask=live)
    tl.store(survival + at, before * confidence, mask=live)
