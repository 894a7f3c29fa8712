# mypy: allow-untyped-decorators
"""Kernels of the soft label, forward; :mod:`heads.kernels.soft_label` launches them.

1. *scan*, one program a span: largest score and Σ exp of each side, one exponential a score.
2. *compare*, one program a span: puts the spans of its row together, then Σ min(q, p),
   Σ |q − p| and Σ q·sign(q − p).
3. *finish*, one program a row: adds the spans in a fixed order; c* = m/(m + Σ|q − p|/2), so equal
   rows are exactly 1 and disjoint rows exactly 0; log-probability and confidence loss on the way.

``one_launch_kernel`` does all three: programs draw tickets, and the order of the tickets puts the
comparison of a row some rows behind its scan, so that the second reading can hit the L2 cache. A
program only waits for tickets drawn before its own, whose programs run or are done, so it cannot
hang.
"""

from __future__ import annotations

import triton
import triton.language as tl

from heads.kernels.soft_label_parts import (
    compare,
    compare_greedy,
    row_of,
    scale_of,
    scan,
    scores_of,
)


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
def scan_kernel(
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
    """One program a span: largest scores and sums of both sides."""
    row, split = tl.program_id(0) // splits, tl.program_id(0) % splits
    draft_side = (draft, draft_stride, draft_temperature, draft_temperature_stride, None)
    target_side = (target, target_stride, target_temperature, target_temperature_stride, None)
    _scan_span(
        draft_side, target_side, sums, bests, row, split, rows, splits, span, vocabulary,
        DRAFT_GIVEN, TARGET_GIVEN, BLOCK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits"])
def compare_kernel(
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
    """One program a span: shared mass and distances, once the row's normalisers are known."""
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
def finish_kernel(
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
    """One program a row: labels and losses from the sums of its spans."""
    draft_side = (draft, draft_stride, draft_temperature, draft_temperature_stride, None)
    _finish_row(
        draft_side, labels, confidence_logits, parts, statistics,
        label_out, distance_out, log_probability_out, confidence_error_out,
        tl.program_id(0), rows, splits, EXACT, MASS, LABELS, CONFIDENCE, SPLITS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "splits", "lag"])
def one_launch_kernel(
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
    """Scan, comparison and finish in the order of tickets; see the module."""
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
