# mypy: allow-untyped-decorators
"""Gradient of the soft label's distance and log-probability to the draft scores, in one launch.

With S = Σ q·sign(q − p) from the forward pass, a token's gradient is

    g_distance · q · (sign(q − p) − S)/T + g_log · ([v = label] − q)/T

so both rows are read once and the gradient is written once, in the type of the draft scores.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heads.kernels.row_spans import STREAMING, dense, spans_of, step_of
from heads.kernels.soft_label_parts import probability, scale_of, scores_of


@triton.jit(do_not_specialize=["rows", "splits"])
def gradient_kernel(
    gradient: tl.tensor,  # [rows, vocabulary] contiguous
    grad_distance: tl.tensor,  # [rows]
    grad_log_probability: tl.tensor,  # [rows] or None
    draft: tl.tensor,
    target: tl.tensor,
    draft_stride: tl.tensor,
    target_stride: tl.tensor,
    draft_temperature: tl.tensor,
    target_temperature: tl.tensor,
    draft_temperature_stride: tl.tensor,
    target_temperature_stride: tl.tensor,
    labels: tl.tensor,  # [rows] or None
    statistics: tl.tensor,  # [7, rows]
    rows: tl.tensor,
    splits: tl.tensor,
    span: tl.tensor,
    vocabulary: tl.tensor,
    LABELS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a span: the gradient of its tokens."""
    row, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    begin = split * span
    end = tl.minimum(begin + span, vocabulary)
    draft_side = (draft, draft_stride, draft_temperature, draft_temperature_stride, None)
    target_side = (target, target_stride, target_temperature, target_temperature_stride, None)
    _, q_scale, q_greedy = scale_of(draft_side, row)
    _, p_scale, p_greedy = scale_of(target_side, row)
    per_distance = tl.load(grad_distance + row).to(tl.float32)
    per_log = per_distance * 0.0
    token = row * 0 - 1
    if LABELS:
        token = tl.load(labels + row).to(tl.int32)
        per_log = tl.where(token >= 0, tl.load(grad_log_probability + row).to(tl.float32), 0.0)
    out = gradient + row.to(tl.int64) * vocabulary
    # Rows that count nothing are not read: what they hold may be NaN.
    if ((per_distance == 0.0) & (per_log == 0.0)) | q_greedy:
        for start in range(begin, end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            nothing = tl.zeros([BLOCK], dtype=tl.float32).to(gradient.dtype.element_ty)
            tl.store(out + at, nothing, mask=at < end)
    else:
        x, y = scores_of(draft_side, row), scores_of(target_side, row)
        mine = statistics + row
        q_shift, q_offset = tl.load(mine), tl.load(mine + rows)
        p_shift, p_offset = tl.load(mine + 2 * rows), tl.load(mine + 3 * rows)
        slope, best = tl.load(mine + 4 * rows), tl.load(mine + 6 * rows).to(tl.int32)
        inverse = q_scale * 0.6931471805599453
        for start in range(begin, end, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < end
            q_scores = tl.load(x + at, mask=inside, other=float("-inf"))
            p_scores = tl.load(y + at, mask=inside, other=float("-inf"))
            q = probability(q_scores, q_shift, q_scale, q_offset)
            p = probability(p_scores, p_shift, p_scale, p_offset)
            p = tl.where(p_greedy, tl.where(at == best, 1.0, 0.0), p)
            sign = tl.where(q > p, 1.0, tl.where(q < p, -1.0, 0.0))
            slopes = q * (per_distance * (sign - slope) - per_log)
            slopes += tl.where(at == token, per_log, 0.0)
            tl.store(out + at, (slopes * inverse).to(gradient.dtype.element_ty), mask=inside)


def soft_label_gradient(
    grad_distance: Tensor,  # [R]
    grad_log_probability: Tensor | None,  # [R]
    draft: Tensor,  # [R, V]
    target: Tensor,  # [R, V]
    draft_temperature: Tensor,  # [R] or [1]
    target_temperature: Tensor,  # [R] or [1]
    labels: Tensor | None,  # [R]
    statistics: Tensor,  # [7, R]
    *,
    block: int | None = None,
    span: int | None = None,
) -> Tensor:
    """Gradient of distance and log-probability to the draft scores; [R, V] in their dtype."""
    rows, vocabulary = draft.shape
    gradient = torch.empty_like(draft, memory_format=torch.contiguous_format)
    if rows == 0:
        return gradient
    cut = spans_of(vocabulary, block, span)
    q_step, p_step = step_of(draft_temperature), step_of(target_temperature)
    if labels is None or grad_log_probability is None:
        labels, grad_log_probability = None, None
    with torch.cuda.device_of(draft):
        gradient_kernel[(rows * cut.splits,)](
            gradient, dense(grad_distance), dense(grad_log_probability),
            draft, target, draft.stride(0), target.stride(0),
            draft_temperature, target_temperature, q_step, p_step,
            dense(labels), statistics, rows, cut.splits, cut.span, vocabulary,
            LABELS=labels is not None, BLOCK=cut.block, **STREAMING,
        )  # fmt: skip
    return gradient
