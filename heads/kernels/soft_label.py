# mypy: allow-untyped-decorators
"""The exact soft label on the GPU, with its gradient; the twin of ``heads.reference.soft_label``.

Letters: R rows, V vocabulary, q draft, p target, S spans of a row.

A row is cut into spans of 8,192 tokens or more, by V alone: the same row gives the same bits in
every batch. Three launches, or two where both log-sum-exps are known:

1. *scan*, one program a span: largest score and Σ exp of each side, one exponential a score.
2. *compare*, one program a span: puts the spans of its row together, then Σ min(q, p),
   Σ |q − p| and Σ q·sign(q − p).
3. *finish*, one program a row: adds the spans in a fixed order; c* = m/(m + Σ|q − p|/2), so equal
   rows are exactly 1 and disjoint rows exactly 0; log-probability and confidence loss on the way.

``Form.ONE_LAUNCH`` does all three in one launch: programs draw tickets, and the order of the
tickets puts the comparison of a row ``_LAG`` programs behind its scan, so that the second reading
can hit the L2 cache. A program only waits for tickets drawn before its own, whose programs run or
are done, so it cannot hang.

Nothing is added atomically in floating point: the same input gives the same bits in every run and
in both forms. The kernels hold tiles in float32, never a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
import triton
import triton.language as tl
from torch import Tensor

from heads.kernels.soft_label_parts import (
    compare,
    compare_greedy,
    probability,
    row_of,
    scale_of,
    scan,
    scores_of,
)
from heads.reference.soft_label import STATISTICS, SoftLabelTerms

_WARPS = 4
_BLOCK = 2048  # tokens a tile: 16 a thread and side
_SPAN = 8192  # 7 rows of 151,936 tokens give 133 programs, one for each SM of an H200
_MOST_SPANS = 32
# Programs between the scan of a row and its comparison: about what an H200 runs at once (8 for
# each of 132 multiprocessors), so that a comparison seldom waits. 17 MB of bfloat16 pairs.
_LAG = 1024


class Form(StrEnum):
    """How the launches are arranged; the numbers are the same."""

    SPLIT = "split"
    ONE_LAUNCH = "one_launch"


@triton.jit
def _scan_span(
    draft_side: tl.tuple,
    target_side: tl.tuple,
    sums: tl.tensor,  # [4, rows, splits]
    bests: tl.tensor,  # [2, rows, splits]
    row: tl.tensor,
    split: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    span: tl.tensor,
    vocabulary: tl.tensor,
    DRAFT_GIVEN: tl.constexpr,
    TARGET_GIVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    cell, cells = row * splits + split, rows * splits
    begin = split * span
    end = tl.minimum(begin + span, vocabulary)
    if not DRAFT_GIVEN:
        scan(draft_side, sums, bests, row, cell, cells, begin, end, BLOCK)
    if not TARGET_GIVEN:
        after = sums + 2 * cells
        scan(target_side, after, bests + cells, row, cell, cells, begin, end, BLOCK)


@triton.jit
def _compare_span(
    draft_side: tl.tuple,
    target_side: tl.tuple,
    sums: tl.tensor,
    bests: tl.tensor,
    parts: tl.tensor,  # [4, rows, splits]
    statistics: tl.tensor,  # [7, rows]
    row: tl.tensor,
    split: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    span: tl.tensor,
    vocabulary: tl.tensor,
    DRAFT_GIVEN: tl.constexpr,
    TARGET_GIVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SLOPE: tl.constexpr,
    MASS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    cell, cells = row * splits + split, rows * splits
    begin = split * span
    end = tl.minimum(begin + span, vocabulary)
    q = row_of(draft_side, sums, bests, row, rows, splits, SPLITS, DRAFT_GIVEN)
    after = sums + 2 * cells
    p = row_of(target_side, after, bests + cells, row, rows, splits, SPLITS, TARGET_GIVEN)
    if q[5] | p[5]:
        shared, apart, slope, mass = compare_greedy(q, p, split == 0)
    else:
        shared, apart, slope, mass = compare(q, p, begin, end, EXACT, SLOPE, MASS, BLOCK)
    tl.store(parts + cell, shared)
    tl.store(parts + cells + cell, apart)
    tl.store(parts + 2 * cells + cell, slope)
    tl.store(parts + 3 * cells + cell, mass)
    if split == 0:
        tl.store(statistics + row, q[1])
        tl.store(statistics + rows + row, q[3])
        tl.store(statistics + 2 * rows + row, p[1])
        tl.store(statistics + 3 * rows + row, p[3])
        tl.store(statistics + 6 * rows + row, p[4].to(tl.float32))


@triton.jit
def _finish_row(
    draft_side: tl.tuple,
    labels: tl.tensor,  # [rows] or None
    confidence_logits: tl.tensor,  # [rows] or None
    parts: tl.tensor,
    statistics: tl.tensor,
    label_out: tl.tensor,
    distance_out: tl.tensor,
    log_probability_out: tl.tensor,
    confidence_error_out: tl.tensor,
    row: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    EXACT: tl.constexpr,
    OUTSIDE: tl.constexpr,
    LABELS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    known = tl.arange(0, SPLITS) < splits
    mine = parts + row * splits + tl.arange(0, SPLITS)
    cells = rows * splits
    shared = tl.sum(tl.load(mine, mask=known, other=0.0, cache_modifier=".cg"), axis=0)
    if EXACT:
        label = shared
    else:
        apart = tl.load(mine + cells, mask=known, other=0.0, cache_modifier=".cg")
        slope = tl.load(mine + 2 * cells, mask=known, other=0.0, cache_modifier=".cg")
        distance = tl.sum(apart, axis=0)
        if OUTSIDE:
            mass = tl.load(mine + 3 * cells, mask=known, other=0.0, cache_modifier=".cg")
            distance += tl.maximum(1.0 - tl.sum(mass, axis=0), 0.0)
        label = shared / (shared + 0.5 * distance)
        tl.store(distance_out + row, distance)
        tl.store(statistics + 4 * rows + row, tl.sum(slope, axis=0))
    tl.store(label_out + row, label)
    if CONFIDENCE:
        z = tl.load(confidence_logits + row).to(tl.float32)
        small = tl.exp(-tl.abs(z))
        error = tl.maximum(z, 0.0) - z * label + tl.log(1.0 + small)
        certainty = tl.where(z < 0.0, small, 1.0) / (1.0 + small)
        tl.store(confidence_error_out + row, error)
        tl.store(statistics + 5 * rows + row, certainty - label)
    if LABELS:
        token = tl.load(labels + row)
        _, scale, _ = scale_of(draft_side, row)
        x = tl.load(scores_of(draft_side, row) + tl.maximum(token, 0)).to(tl.float32)
        shift = tl.load(statistics + row, cache_modifier=".cg")
        offset = tl.load(statistics + rows + row, cache_modifier=".cg")
        log2 = (x - shift) * scale - offset
        tl.store(log_probability_out + row, tl.where(token >= 0, log2 * 0.6931471805599453, 0.0))


@triton.jit(do_not_specialize=["rows", "splits"])
def _scan_kernel(
    draft: tl.tensor,
    target: tl.tensor,
    draft_stride: tl.tensor,
    target_stride: tl.tensor,
    draft_temperature: tl.tensor,
    target_temperature: tl.tensor,
    draft_temperature_stride: tl.tensor,
    target_temperature_stride: tl.tensor,
    sums: tl.tensor,
    bests: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    span: tl.tensor,
    vocabulary: tl.tensor,
    DRAFT_GIVEN: tl.constexpr,
    TARGET_GIVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    draft_side = (draft, draft_stride, draft_temperature, draft_temperature_stride, None)
    target_side = (target, target_stride, target_temperature, target_temperature_stride, None)
    _scan_span(
        draft_side, target_side, sums, bests, row, split, rows, splits, span, vocabulary,
        DRAFT_GIVEN, TARGET_GIVEN, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits"])
def _compare_kernel(
    draft: tl.tensor,
    target: tl.tensor,
    draft_stride: tl.tensor,
    target_stride: tl.tensor,
    draft_temperature: tl.tensor,
    target_temperature: tl.tensor,
    draft_temperature_stride: tl.tensor,
    target_temperature_stride: tl.tensor,
    draft_log_sum_exp: tl.tensor,
    target_log_sum_exp: tl.tensor,
    sums: tl.tensor,
    bests: tl.tensor,
    parts: tl.tensor,
    statistics: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    span: tl.tensor,
    vocabulary: tl.tensor,
    DRAFT_GIVEN: tl.constexpr,
    TARGET_GIVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SLOPE: tl.constexpr,
    MASS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    draft_side = (
        draft, draft_stride, draft_temperature, draft_temperature_stride, draft_log_sum_exp,
    )  # fmt: skip
    target_side = (
        target, target_stride, target_temperature, target_temperature_stride, target_log_sum_exp,
    )  # fmt: skip
    _compare_span(
        draft_side, target_side, sums, bests, parts, statistics,
        row, split, rows, splits, span, vocabulary,
        DRAFT_GIVEN, TARGET_GIVEN, EXACT, SLOPE, MASS, SPLITS, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits"])
def _finish_kernel(
    draft: tl.tensor,
    draft_stride: tl.tensor,
    draft_temperature: tl.tensor,
    draft_temperature_stride: tl.tensor,
    labels: tl.tensor,
    confidence_logits: tl.tensor,
    parts: tl.tensor,
    statistics: tl.tensor,
    label_out: tl.tensor,
    distance_out: tl.tensor,
    log_probability_out: tl.tensor,
    confidence_error_out: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    EXACT: tl.constexpr,
    MASS: tl.constexpr,
    LABELS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    draft_side = (draft, draft_stride, draft_temperature, draft_temperature_stride, None)
    _finish_row(
        draft_side, labels, confidence_logits, parts, statistics,
        label_out, distance_out, log_probability_out, confidence_error_out,
        tl.program_id(0), rows, splits, EXACT, MASS, LABELS, CONFIDENCE, SPLITS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits", "lag"])
def _one_launch_kernel(
    draft: tl.tensor,
    target: tl.tensor,
    draft_stride: tl.tensor,
    target_stride: tl.tensor,
    draft_temperature: tl.tensor,
    target_temperature: tl.tensor,
    draft_temperature_stride: tl.tensor,
    target_temperature_stride: tl.tensor,
    draft_log_sum_exp: tl.tensor,
    target_log_sum_exp: tl.tensor,
    labels: tl.tensor,
    confidence_logits: tl.tensor,
    counters: tl.tensor,  # [1 + 2·rows] zeros: tickets, spans scanned, spans compared
    sums: tl.tensor,
    bests: tl.tensor,
    parts: tl.tensor,
    statistics: tl.tensor,
    label_out: tl.tensor,
    distance_out: tl.tensor,
    log_probability_out: tl.tensor,
    confidence_error_out: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    span: tl.tensor,
    vocabulary: tl.tensor,
    lag: tl.tensor,
    DRAFT_GIVEN: tl.constexpr,
    TARGET_GIVEN: tl.constexpr,
    EXACT: tl.constexpr,
    SLOPE: tl.constexpr,
    MASS: tl.constexpr,
    LABELS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    draft_side = (
        draft, draft_stride, draft_temperature, draft_temperature_stride, draft_log_sum_exp,
    )  # fmt: skip
    target_side = (
        target, target_stride, target_temperature, target_temperature_stride, target_log_sum_exp,
    )  # fmt: skip
    scanned, compared = counters + 1, counters + 1 + rows
    ticket = tl.atomic_add(counters, 1, sem="relaxed")
    slot, split = ticket // (2 * splits), ticket % (2 * splits)
    if split < splits:
        if slot < rows:
            _scan_span(
                draft_side, target_side, sums, bests, slot, split, rows, splits, span, vocabulary,
                DRAFT_GIVEN, TARGET_GIVEN, BLOCK,
            )  # fmt: skip
            tl.debug_barrier()  # the release below speaks for every thread of the program
            tl.atomic_add(scanned + slot, 1, sem="release")
    elif slot >= lag:
        row, split = slot - lag, split - splits
        seen = tl.atomic_add(scanned + row, 0, sem="acquire")
        while seen < splits:
            seen = tl.atomic_add(scanned + row, 0, sem="acquire")
        _compare_span(
            draft_side, target_side, sums, bests, parts, statistics,
            row, split, rows, splits, span, vocabulary,
            DRAFT_GIVEN, TARGET_GIVEN, EXACT, SLOPE, MASS, SPLITS, BLOCK,
        )  # fmt: skip
        tl.debug_barrier()
        if tl.atomic_add(compared + row, 1, sem="acq_rel") == splits - 1:
            _finish_row(
                draft_side, labels, confidence_logits, parts, statistics,
                label_out, distance_out, log_probability_out, confidence_error_out,
                row, rows, splits, EXACT, MASS, LABELS, CONFIDENCE, SPLITS,
            )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits"])
def _gradient_kernel(
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


@dataclass(frozen=True, slots=True)
class _Cut:
    """How rows are cut: tokens a tile, tokens a span, spans a row."""

    block: int
    span: int
    splits: int

    @property
    def padded(self) -> int:
        """Spans a row, as the power of two that a tile of them needs."""
        return triton.next_power_of_2(self.splits)  # type: ignore[no-any-return]


def _cut(vocabulary: int, block: int | None, span: int | None) -> _Cut:
    """The cut of a vocabulary. It must not depend on the batch, so that labels do not."""
    tile = block or max(32 * _WARPS, min(_BLOCK, triton.next_power_of_2(vocabulary)))
    wanted = max(span or _SPAN, triton.cdiv(vocabulary, _MOST_SPANS))
    length = triton.cdiv(wanted, tile) * tile
    return _Cut(tile, length, triton.cdiv(vocabulary, length))


def _temperatures(temperature: Tensor) -> tuple[Tensor, int]:
    """Temperatures, and the step from one row to the next: 0 where one serves all rows."""
    return temperature, temperature.stride(0) if temperature.numel() > 1 else 0


_OPTIONS = {"num_warps": _WARPS, "enable_fp_fusion": False}
_SMALL_OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}


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
    cut = _cut(vocabulary, block, span)
    out = _outputs(draft, exact_match, labels, confidence_logits)
    if rows == 0:
        return out
    scratch = draft.new_empty((8, rows, cut.splits), dtype=torch.float32)
    bests = draft.new_empty((2, rows, cut.splits), dtype=torch.int32)
    q_temperature, q_step = _temperatures(draft_temperature)
    p_temperature, p_step = _temperatures(target_temperature)
    sides = (
        draft, target, draft.stride(0), target.stride(0),
        q_temperature, p_temperature, q_step, p_step,
    )  # fmt: skip
    given = {
        "DRAFT_GIVEN": draft_log_sum_exp is not None,
        "TARGET_GIVEN": target_log_sum_exp is not None,
    }
    what = {"EXACT": exact_match, "MASS": outside and not exact_match}
    losses = {"LABELS": labels is not None, "CONFIDENCE": confidence_logits is not None}
    known = (draft_log_sum_exp, target_log_sum_exp)
    asked = (labels, confidence_logits)
    results = (out.label, out.distance, out.log_probability, out.confidence_error)
    sizes = (rows, cut.splits, cut.span, vocabulary)
    common = {"SPLITS": cut.padded, **what}
    with torch.cuda.device_of(draft):
        if form is Form.ONE_LAUNCH:
            lag = 0 if all(given.values()) else min(rows, triton.cdiv(_LAG, 2 * cut.splits))
            counters = torch.zeros(1 + 2 * rows, dtype=torch.int32, device=draft.device)
            _one_launch_kernel[((rows + lag) * 2 * cut.splits,)](
                *sides, *known, *asked, counters, scratch, bests, scratch[4:], out.statistics,
                *results, *sizes, lag, **given, **common, **losses,
                SLOPE=needs_slope, BLOCK=cut.block, **_OPTIONS,
            )  # fmt: skip
            return out
        grid = (rows * cut.splits,)
        if not all(given.values()):
            _scan_kernel[grid](*sides, scratch, bests, *sizes, **given, BLOCK=cut.block, **_OPTIONS)
        _compare_kernel[grid](
            *sides, *known, scratch, bests, scratch[4:], out.statistics, *sizes,
            **given, **common, SLOPE=needs_slope, BLOCK=cut.block, **_OPTIONS,
        )  # fmt: skip
        _finish_kernel[(rows,)](
            draft, draft.stride(0), q_temperature, q_step, *asked, scratch[4:], out.statistics,
            *results, rows, cut.splits, **common, **losses, **_SMALL_OPTIONS,
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
    cut = _cut(vocabulary, block, span)
    q_temperature, q_step = _temperatures(draft_temperature)
    p_temperature, p_step = _temperatures(target_temperature)
    if labels is None or grad_log_probability is None:
        labels, grad_log_probability = None, None
    else:
        grad_log_probability = grad_log_probability.contiguous()
    with torch.cuda.device_of(draft):
        _gradient_kernel[(rows * cut.splits,)](
            gradient, grad_distance.contiguous(), grad_log_probability,
            draft, target, draft.stride(0), target.stride(0),
            q_temperature, p_temperature, q_step, p_step,
            labels, statistics, rows, cut.splits, cut.span, vocabulary,
            LABELS=labels is not None, BLOCK=cut.block, **_OPTIONS,
        )  # fmt: skip
    return gradient
