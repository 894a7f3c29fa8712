"""The exact soft label on the GPU, with its gradient; the twin of ``heads.reference.soft_label``.

Three launches, or two where both log-sum-exps are known, or one (``Form.ONE_LAUNCH``); the kernels
stand in :mod:`heads.kernels.soft_label_kernel`. Nothing is added atomically in floating point and
rows are cut by the vocabulary alone: the same row gives the same bits in every run, every batch
and both forms. Kernels hold tiles in float32, never a row; nothing is read back.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from heads.kernels.row_spans import SMALL, STREAMING, dense, spans_of, step_of
from heads.kernels.soft_label_gradient import soft_label_gradient
from heads.kernels.soft_label_kernel import (
    compare_kernel,
    finish_kernel,
    one_launch_kernel,
    scan_kernel,
)
from heads.reference.soft_label import STATISTICS, SoftLabelTerms

__all__ = ["Form", "soft_label_gradient", "soft_label_terms"]

# Programs between the scan of a row and its comparison: about what an H200 runs at once (8 for
# each of 132 multiprocessors), so that a comparison seldom waits. 17 MB of bfloat16 pairs.
_LAG = 1024


class Form(StrEnum):
    """How the launches are arranged; the numbers are the same."""

    SPLIT = "split"
    ONE_LAUNCH = "one_launch"


def soft_label_terms(
    draft: Tensor,  # [R, V], the last axis contiguous
    target: Tensor,  # [R, V]
    draft_temperature: Tensor,  # [R] or [1]; 0 is greedy
    target_temperature: Tensor,  # [R] or [1]
    draft_log_sum_exp: Tensor | None = None,  # [R] log Σ exp(x/T), if known
    target_log_sum_exp: Tensor | None = None,  # [R]
    labels: Tensor | None = None,  # [R] integers, −1 for none
    confidence_logits: Tensor | None = None,  # [R]
    *,
    exact_match: bool = False,
    outside: bool = False,
    needs_slope: bool = True,
    block: int | None = None,
    span: int | None = None,
    form: Form = Form.SPLIT,
) -> SoftLabelTerms:
    """Labels, distances and losses of rows of scores, as its twin in ``heads.reference`` gives.

    Args:
        draft: scores of the drafter: bfloat16, float16 or float32.
        target: scores of the target for the same tokens.
        draft_temperature: of sampling.
        target_temperature: as ``draft_temperature``.
        draft_log_sum_exp: saves the pass that would find it.
        target_log_sum_exp: as ``draft_log_sum_exp``.
        labels: tokens whose log-probability is wanted.
        confidence_logits: z of each row.
        exact_match: the label is Σ q·p.
        outside: target mass that the rows lack is distance.
        needs_slope: whether a backward pass will follow.
        block: tokens a tile, a power of two.
        span: tokens a program, at least.
        form: how the launches are arranged.
    """
    rows, vocabulary = draft.shape
    cut = spans_of(vocabulary, block, span)
    out = _outputs(draft, exact_match, labels, confidence_logits)
    if rows == 0:
        return out
    scratch = draft.new_empty((8, rows, cut.splits), dtype=torch.float32)
    bests = draft.new_empty((2, rows, cut.splits), dtype=torch.int32)
    q_step, p_step = step_of(draft_temperature), step_of(target_temperature)
    sides = (
        draft, target, draft.stride(0), target.stride(0),
        draft_temperature, target_temperature, q_step, p_step,
    )  # fmt: skip
    given = {
        "DRAFT_GIVEN": draft_log_sum_exp is not None,
        "TARGET_GIVEN": target_log_sum_exp is not None,
    }
    what = {"EXACT": exact_match, "MASS": outside and not exact_match}
    losses = {"LABELS": labels is not None, "CONFIDENCE": confidence_logits is not None}
    known = dense(draft_log_sum_exp), dense(target_log_sum_exp)
    asked = dense(labels), dense(confidence_logits)
    results = (out.label, out.distance, out.log_probability, out.confidence_error)
    sizes = (rows, cut.splits, cut.span, vocabulary)
    common = {"SPLITS": cut.padded, **what}
    with torch.cuda.device_of(draft):
        if form is Form.ONE_LAUNCH:
            lag = 0 if all(given.values()) else min(rows, -(-_LAG // (2 * cut.splits)))
            counters = torch.zeros(1 + 2 * rows, dtype=torch.int32, device=draft.device)
            one_launch_kernel[((rows + lag) * 2 * cut.splits,)](
                *sides, *known, *asked, counters, scratch, bests, scratch[4:], out.statistics,
                *results, *sizes, lag, **given, **common, **losses,
                SLOPE=needs_slope, BLOCK=cut.block, **STREAMING,
            )  # fmt: skip
            return out
        grid = (rows * cut.splits,)
        if not all(given.values()):
            scan_kernel[grid](*sides, scratch, bests, *sizes, **given, BLOCK=cut.block, **STREAMING)
        compare_kernel[grid](
            *sides, *known, scratch, bests, scratch[4:], out.statistics, *sizes,
            **given, **common, SLOPE=needs_slope, BLOCK=cut.block, **STREAMING,
        )  # fmt: skip
        finish_kernel[(rows,)](
            draft, draft.stride(0), draft_temperature, q_step, *asked, scratch[4:], out.statistics,
            *results, rows, cut.splits, **common, **losses, **SMALL,
        )  # fmt: skip
    return out


def _outputs(
    draft: Tensor, exact_match: bool, labels: Tensor | None, confidence_logits: Tensor | None
) -> SoftLabelTerms:
    rows = len(draft)

    def column(wanted: bool) -> Tensor:
        return draft.new_empty(rows if wanted else 0, dtype=torch.float32)

    return SoftLabelTerms(
        label=column(True),
        distance=column(not exact_match),
        log_probability=column(labels is not None),
        confidence_error=column(confidence_logits is not None),
        statistics=draft.new_zeros((STATISTICS, rows), dtype=torch.float32),
    )
