# mypy: allow-untyped-decorators
"""What the soft-label kernels do with one span of one row; the algebra stands in ``soft_label``.

Every function here runs inside a kernel. A *side* is where draft or target is found,

    (scores, row stride, temperatures, temperature stride, log-sum-exps or None),

and a *row* of it is a distribution ready to be evaluated,

    (scores of the row, shift, scale, offset, best token, greedy),
    p(v) = exp2((x(v) − shift) · scale − offset),    scale = log2(e)/T,

either from sums over the row (shift the largest score, offset = log2 Σ) or from a log-sum-exp that
is known already (shift = T · lse, offset = 0). Both sides take the same instructions in the same
order, so equal rows give equal numbers to the last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_of(
    side: tl.tuple,
    row: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """T, log2(e)/T and whether T is 0; a greedy row is scanned at T = 1, T < 0 gives NaN."""
    _, _, temperatures, stride, _ = side
    temperature = tl.load(temperatures + row * stride).to(tl.float32)
    greedy = temperature == 0.0
    divisor = tl.maximum(tl.where(greedy, 1.0, temperature), 1e-30)
    scale = 1.4426950408889634 / divisor
    return temperature, tl.where(temperature >= 0.0, scale, float("nan")), greedy


@triton.jit
def scores_of(
    side: tl.tuple,
    row: tl.tensor,
) -> tl.tensor:
    """Where the scores of a row begin; in 64 bits, as a batch may hold more than 2³¹ of them."""
    scores, stride, _, _, _ = side
    return scores + row.to(tl.int64) * stride


@triton.jit
def scan(
    side: tl.tuple,
    sums: tl.tensor,  # [2, rows, splits]: largest score, Σ exp2((x − largest) · scale)
    bests: tl.tensor,  # [rows, splits]: lowest id of the largest
    row: tl.tensor,
    cell: tl.tensor,  # row * splits + split
    cells: tl.tensor,  # rows * splits
    begin: tl.tensor,
    end: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Write the largest score of a span and its sum of exponentials.

    A span of −inf only gives (−inf, 0, begin); NaN and +inf make the sum NaN.
    """
    _, scale, _ = scale_of(side, row)
    scores = scores_of(side, row)
    peak = float("-inf")
    best = begin
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(scores + at, mask=at < end, other=float("-inf")).to(tl.float32)
        largest = tl.max(x, axis=0)
        if largest > peak:
            best = tl.min(tl.where(x == largest, at, end), axis=0)
        after = tl.maximum(peak, largest)
        finite = tl.maximum(after, -3.4e38)  # −inf − −inf would be NaN
        shrink = tl.exp2((peak - finite) * scale)
        total = tl.fma(total, shrink, tl.exp2((x - finite) * scale))
        peak = after
    tl.store(sums + cell, peak)
    tl.store(sums + cells + cell, tl.sum(total, axis=0))
    tl.store(bests + cell, best)


@triton.jit
def row_of(
    side: tl.tuple,
    sums: tl.tensor,  # [2, rows, splits]
    bests: tl.tensor,  # [rows, splits]
    row: tl.tensor,
    rows: tl.tensor,
    splits: tl.tensor,
    SPLITS: tl.constexpr,
    GIVEN: tl.constexpr,
) -> tl.tuple:
    """The row of a side, its spans put together in a fixed order.

    The offset is NaN where the row is no distribution: NaN, +inf, or −inf only. Spans are read
    through the L2 cache, because other programs of the same launch may have written them.
    """
    temperature, scale, greedy = scale_of(side, row)
    if GIVEN:
        _, _, _, _, log_sum_exps = side
        # Of a greedy row the log-sum-exp says nothing about the best token: no answer is right.
        lse = tl.where(greedy, float("nan"), tl.load(log_sum_exps + row).to(tl.float32))
        shift = lse * temperature
        offset = lse * 0.0
        best = row * 0
    else:
        at = row * splits + tl.arange(0, SPLITS)
        known = tl.arange(0, SPLITS) < splits
        peaks = tl.load(sums + at, mask=known, other=float("-inf"), cache_modifier=".cg")
        totals = tl.load(sums + rows * splits + at, mask=known, other=0.0, cache_modifier=".cg")
        ids = tl.load(bests + at, mask=known, other=0x7FFFFFFF, cache_modifier=".cg")
        peak = tl.max(peaks, axis=0)
        shift = tl.maximum(peak, -3.4e38)
        total = tl.sum(totals * tl.exp2((peaks - shift) * scale), axis=0)
        offset = tl.log2(tl.where(total > 0.0, total, float("nan")))
        best = tl.min(tl.where(peaks == peak, ids, 0x7FFFFFFF), axis=0)
    return scores_of(side, row), shift, scale, offset, best, greedy


@triton.jit
def probability(
    scores: tl.tensor,  # some tokens of a row, or one
    shift: tl.tensor,
    scale: tl.tensor,
    offset: tl.tensor,
) -> tl.tensor:
    """p of tokens at a row's temperature."""
    return tl.exp2(tl.fma(scores.to(tl.float32) - shift, scale, -offset))


@triton.jit
def compare(
    draft: tl.tuple,  # row
    target: tl.tuple,  # row
    begin: tl.tensor,
    end: tl.tensor,
    EXACT: tl.constexpr,
    SLOPE: tl.constexpr,
    MASS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tuple:
    """(Σ min(q, p), Σ |q − p|, Σ q · sign(q − p), Σ p) of a span; EXACT: (Σ q·p, 0, 0, 0).

    The third is 0 unless SLOPE, the fourth unless MASS.
    """
    x, x_shift, x_scale, x_offset, _, _ = draft
    y, y_shift, y_scale, y_offset, _, _ = target
    shared = tl.zeros([BLOCK], dtype=tl.float32)
    apart = tl.zeros([BLOCK], dtype=tl.float32)
    slope = tl.zeros([BLOCK], dtype=tl.float32)
    mass = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(begin, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < end
        q_scores = tl.load(x + at, mask=inside, other=float("-inf"))
        p_scores = tl.load(y + at, mask=inside, other=float("-inf"))
        q = probability(q_scores, x_shift, x_scale, x_offset)
        p = probability(p_scores, y_shift, y_scale, y_offset)
        if EXACT:
            shared += q * p
        else:
            # From minimum and maximum, not q − p: a difference that was fused with a product
            # inside q would not be exactly 0 for equal rows.
            low = tl.minimum(q, p, propagate_nan=tl.PropagateNan.ALL)
            shared += low
            apart += tl.maximum(q, p, propagate_nan=tl.PropagateNan.ALL) - low
            if SLOPE:
                slope += tl.where(q > p, q, tl.where(q < p, -q, 0.0))
            if MASS:
                mass += p
    return (
        tl.sum(shared, axis=0),
        tl.sum(apart, axis=0),
        tl.sum(slope, axis=0),
        tl.sum(mass, axis=0),
    )


@triton.jit
def compare_greedy(
    draft: tl.tuple,  # row
    target: tl.tuple,  # row
    first: tl.tensor,  # whether this span speaks for the row
) -> tl.tuple:
    """What ``compare`` gives when a side has all its mass on its best token.

    The share is p(argmax q), q(argmax p), or whether the two agree: q·p of the token that counts.
    """
    x, x_shift, x_scale, x_offset, x_best, x_greedy = draft
    y, y_shift, y_scale, y_offset, y_best, y_greedy = target
    token = tl.where(x_greedy, x_best, y_best)
    q = probability(tl.load(x + token), x_shift, x_scale, x_offset)
    p = probability(tl.load(y + token), y_shift, y_scale, y_offset)
    q = tl.where(x_greedy, 1.0, q)
    p = tl.where(y_greedy, tl.where(y_best == token, 1.0, 0.0), p)
    # A row that is no distribution must not look like one because its best token was found.
    share = q * p + (x_shift + x_offset + y_shift + y_offset) * 0.0
    slope = tl.where(share == 1.0, 0.0, 1.0 - 2.0 * share)  # sign(0) = 0
    return (
        tl.where(first, share, 0.0),
        tl.where(first, 2.0 * (1.0 - share), 0.0),
        tl.where(first, slope, 0.0),
        tl.where(first, 1.0, 0.0),
    )
