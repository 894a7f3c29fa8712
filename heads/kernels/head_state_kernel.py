# mypy: allow-untyped-decorators
"""Kernels of gated and RNN heads: what meets W2 in place of W1[x_{k−1}].

The columns that read h know no token, so one product of all positions is taken before the first
(``projection_kernel``, [B·γ, D] with [r or 3r, D]). A position then adds the small rest::

    gated   gate = P_k + W_e e                      latent = σ(gate) ⊙ e
    rnn     [gate, candidate, output] = P_k + W_s s_{k−1} + W_e e
            s_k = σ(gate) ⊙ s_{k−1} + (1 − σ(gate)) ⊙ tanh(candidate)      latent = tanh(output)

with e = W1[x_{k−1}]. A program computes BLOCK_N columns for a block of rows; s lies in two halves
that positions use in turn, because every program reads all of s_{k−1} while some write s_k.
Operands have the weights' type, sums are float32, s and latent are kept in float32.

Outputs lie along axis 0 and rows along axis 1, as in :mod:`heads.kernels.draft_block_kernel`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from heads.kernels.drafted_tokens import previous_tokens
from heads.kernels.elementary_functions import sigmoid, tanh


@triton.jit(do_not_specialize=("rows", "gamma"))
def projection_kernel(
    hidden_ptr: tl.tensor,  # [B, γ, D]
    hidden_row: tl.tensor,
    hidden_position: tl.tensor,
    weight_ptr: tl.tensor,  # [N, D]
    weight_row: tl.tensor,
    bias_ptr: tl.tensor,  # [N]
    projected_ptr: tl.tensor,  # [B, γ, N] float32
    rows: tl.tensor,
    gamma: tl.tensor,
    outputs: tl.tensor,  # N
    width: tl.tensor,  # D
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,  # pairs of row and position
    BLOCK_D: tl.constexpr,
) -> None:
    """W_h h_k + b of every row and position."""
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    live, known = pair < rows * gamma, output < outputs
    first = (pair // gamma).to(tl.int64) * hidden_row + (pair % gamma) * hidden_position
    weight_ptrs = weight_ptr + output[:, None] * weight_row
    total = tl.zeros([BLOCK_N, BLOCK_B], tl.float32)
    for begin in range(0, width, BLOCK_D):
        at = begin + tl.arange(0, BLOCK_D)
        mask = known[:, None] & (at < width)[None, :]
        weight = tl.load(weight_ptrs + at[None, :], mask=mask, other=0.0)
        mask = live[None, :] & (at < width)[:, None]
        hidden = tl.load(hidden_ptr + first[None, :] + at[:, None], mask=mask, other=0.0)
        total = tl.dot(weight, hidden.to(weight.dtype), total, input_precision="ieee")
    bias = tl.load(bias_ptr + output, mask=known, other=0.0).to(tl.float32)
    place = projected_ptr + pair.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(place, total + bias[:, None], mask=known[:, None] & live[None, :])


@triton.jit(do_not_specialize=("index", "rows", "gamma", "vocabulary"))
def gated_kernel(
    w1_ptr: tl.tensor,  # [V, r]
    w1_row: tl.tensor,
    code_weight_ptr: tl.tensor,  # [r, r]
    code_weight_row: tl.tensor,
    projected_ptr: tl.tensor,  # [B, γ, r] float32
    anchors_ptr: tl.tensor,  # [B] int64
    words_ptr: tl.tensor,  # [γ, capacity] int64
    words_stride: tl.tensor,
    draft_to_target_ptr: tl.tensor,  # [V' of all shards] int64, or None
    latents_ptr: tl.tensor,  # [B, r] float32
    index: tl.tensor,  # k − 1
    rows: tl.tensor,
    gamma: tl.tensor,
    vocabulary: tl.tensor,  # V
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """Latents of position ``index`` + 1 of a gated head."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    live, known = row < rows, column < RANK
    mask = known[:, None] & live[None, :]
    if DEPENDENT:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    chain = (anchors_ptr, words_ptr, words_stride, draft_to_target_ptr, vocabulary)
    codes = w1_ptr + previous_tokens(chain, index, row, live) * w1_row
    first = projected_ptr + (row * gamma + index).to(tl.int64) * RANK
    gate = tl.load(first[None, :] + column[:, None], mask=mask, other=0.0)
    weights = code_weight_ptr + column * code_weight_row
    gate = _add_dot(gate, weights, codes, known, live, RANK, BLOCK_R)
    code = tl.load(codes[None, :] + column[:, None], mask=mask, other=0.0)
    latent = sigmoid(gate) * code.to(tl.float32)
    tl.store(latents_ptr + row[None, :] * RANK + column[:, None], latent, mask=mask)


@triton.jit(do_not_specialize=("index", "rows", "gamma", "vocabulary"))
def recurrent_kernel(
    w1_ptr: tl.tensor,  # [V, r]
    w1_row: tl.tensor,
    code_weight_ptr: tl.tensor,  # [3r, r]
    code_weight_row: tl.tensor,
    state_weight_ptr: tl.tensor,  # [3r, r]
    state_weight_row: tl.tensor,
    projected_ptr: tl.tensor,  # [B, γ, 3r] float32
    anchors_ptr: tl.tensor,  # [B] int64
    words_ptr: tl.tensor,  # [γ, capacity] int64
    words_stride: tl.tensor,
    draft_to_target_ptr: tl.tensor,  # [V' of all shards] int64, or None
    latents_ptr: tl.tensor,  # [B, r] float32
    states_ptr: tl.tensor,  # [2, capacity, r] float32
    states_turn: tl.tensor,
    index: tl.tensor,  # k − 1
    rows: tl.tensor,
    gamma: tl.tensor,
    vocabulary: tl.tensor,  # V
    RANK: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_R: tl.constexpr,
    DEPENDENT: tl.constexpr,
) -> None:
    """State and latents of position ``index`` + 1 of an RNN head."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    live, known = row < rows, column < RANK
    mask = known[:, None] & live[None, :]
    if DEPENDENT:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    chain = (anchors_ptr, words_ptr, words_stride, draft_to_target_ptr, vocabulary)
    codes = w1_ptr + previous_tokens(chain, index, row, live) * w1_row
    # s_0 is zero whatever the buffer holds.
    started = live & (index > 0)
    states = states_ptr + (index % 2) * states_turn + row * RANK
    operands = (codes, live, states, started)
    weights = (code_weight_ptr, code_weight_row, state_weight_ptr, state_weight_row)
    first = projected_ptr + (row * gamma + index).to(tl.int64) * (3 * RANK)
    gate = _joint(0, first, operands, weights, column, known, mask, RANK, BLOCK_R)
    candidate = _joint(1, first, operands, weights, column, known, mask, RANK, BLOCK_R)
    output = _joint(2, first, operands, weights, column, known, mask, RANK, BLOCK_R)
    before = known[:, None] & started[None, :]
    state = tl.load(states[None, :] + column[:, None], mask=before, other=0.0)
    gate = sigmoid(gate)
    state = gate * state + (1.0 - gate) * tanh(candidate)
    after = states_ptr + ((index + 1) % 2) * states_turn + row[None, :] * RANK
    tl.store(after + column[:, None], state, mask=mask)
    tl.store(latents_ptr + row[None, :] * RANK + column[:, None], tanh(output), mask=mask)


@triton.jit
def _joint(
    part: tl.constexpr,  # 0 gate, 1 candidate, 2 output
    first: tl.tensor,  # [BLOCK_B] pointers to the hidden part
    operands: tl.tuple,  # codes, their mask, states, their mask
    weights: tl.tuple,  # of codes and of states, each with its row stride
    column: tl.tensor,
    known: tl.tensor,
    mask: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
) -> tl.tensor:
    """P_k + W_e e + W_s s_{k−1} of one part of the joint projection; [BLOCK_N, BLOCK_B]."""
    codes, live, states, started = operands
    code_weights, code_row, state_weights, state_row = weights
    at = part * RANK + column
    total = tl.load(first[None, :] + at[:, None], mask=mask, other=0.0)
    total = _add_dot(total, code_weights + at * code_row, codes, known, live, RANK, BLOCK_R)
    return _add_dot(total, state_weights + at * state_row, states, known, started, RANK, BLOCK_R)


@triton.jit
def _add_dot(
    total: tl.tensor,  # [BLOCK_N, BLOCK_B] float32
    weights: tl.tensor,  # [BLOCK_N] pointers to rows of the weight
    vectors: tl.tensor,  # [BLOCK_B] pointers to codes or states
    known: tl.tensor,
    live: tl.tensor,
    RANK: tl.constexpr,
    BLOCK_R: tl.constexpr,
) -> tl.tensor:
    for begin in range(0, RANK, BLOCK_R):
        at = begin + tl.arange(0, BLOCK_R)
        mask = known[:, None] & (at < RANK)[None, :]
        weight = tl.load(weights[:, None] + at[None, :], mask=mask, other=0.0)
        mask = live[None, :] & (at < RANK)[:, None]
        vector = tl.load(vectors[None, :] + at[:, None], mask=mask, other=0.0)
        total = tl.dot(weight, vector.to(weight.dtype), total, input_precision="ieee")
    return total
