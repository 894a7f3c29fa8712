# mypy: allow-untyped-decorators
"""Reliability sums on the GPU; the twin of ``heads.reference.reliability_bins``.

One program takes some rows of one position. Terms are formed in float64, on purpose: they must be
the very numbers that NumPy rounds to fixed point, and ten operations a row cost nothing beside the
reading. Integers are then added in any order, in the program and atomically, so the result has the
same bits on every device and in every split.

With few cells a program adds its rows cell by cell before it touches memory. With many (the fine
cells behind equal-mass bins) rows spread so far that adding each one to memory is cheaper.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from heads.reference.reliability_bins import SUM_NAMES, BinnedSums

_BLOCK = 256  # rows of a program: 6 terms of 8 rows a lane fit the registers (compiled)
_FEW_CELLS = 32
_OPTIONS = {"num_warps": 1, "enable_fp_fusion": False}


@triton.jit
def _units(
    term: tl.tensor,  # float64, 0 or more
    UNITS: tl.constexpr,
) -> tl.tensor:
    """Whole units of a term, to nearest, ties to even: above 2⁵² float64 has no fractions."""
    return ((term * UNITS + 4503599627370496.0) - 4503599627370496.0).to(tl.int64)


@triton.jit
def _cells_of(
    p32: tl.tensor,  # [BLOCK] float32
    cells: tl.tensor,
    used: tl.tensor,
) -> tl.tensor:
    """Cell of each p: min(floor(p · cells), cells − 1), the product in float32."""
    scaled = tl.where(used, p32, 0.0) * cells.to(tl.float32)
    return tl.minimum(scaled.to(tl.int32), cells - 1)


@triton.jit(do_not_specialize=["rows", "gamma", "cells"])
def sums_kernel(
    p: tl.tensor,  # [rows, gamma]
    y: tl.tensor,  # [rows, gamma]
    mask: tl.tensor,  # [rows, gamma] or None
    bins: tl.tensor,  # [rows, gamma] or None
    log_losses: tl.tensor,  # [rows, gamma] or None
    sums: tl.tensor,  # [6 or 7, gamma, cells] zeros
    invalid: tl.tensor,  # [gamma] zeros
    rows: tl.tensor,
    gamma: tl.tensor,
    cells: tl.tensor,
    MASKED: tl.constexpr,
    BINS: tl.constexpr,
    LOSSES: tl.constexpr,
    FEW: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One program a block of rows of one position: its part of every cell's sums."""
    position = tl.program_id(1)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row.to(tl.int64) * gamma + position
    used = row < rows
    if MASKED:
        used = used & (tl.load(mask + at, mask=used, other=0) != 0)
    p32 = tl.load(p + at, mask=used, other=0.0).to(tl.float32)
    y32 = tl.load(y + at, mask=used, other=0.0).to(tl.float32)
    valid = (p32 >= 0.0) & (p32 <= 1.0) & (y32 >= 0.0) & (y32 <= 1.0)
    loss_units = tl.zeros([BLOCK], dtype=tl.int64)
    if LOSSES:
        loss = tl.load(log_losses + at, mask=used, other=0.0).to(tl.float64)
        valid = valid & (loss >= 0.0)
        loss_units = _units(tl.minimum(loss, 4096.0), 16777216.0)
    wrong = tl.sum((used & (valid == 0)).to(tl.int32), axis=0)
    if wrong > 0:
        tl.atomic_add(invalid + position, wrong.to(tl.int64), sem="relaxed")
    used = used & valid
    if BINS:
        index = tl.load(bins + at, mask=used, other=-1).to(tl.int32)
        used = used & (index >= 0) & (index < cells)
    else:
        index = _cells_of(p32, cells, used)
    terms = _terms(p32.to(tl.float64), y32.to(tl.float64))
    out = sums + position * cells
    if FEW:
        for cell in range(cells):
            _add_rows(out + cell, gamma * cells, terms, loss_units, used & (index == cell), LOSSES)
    else:
        _add_each(out + index, gamma * cells, terms, loss_units, used, LOSSES)


@triton.jit
def _terms(
    p: tl.tensor,  # [BLOCK] float64
    y: tl.tensor,  # [BLOCK] float64
) -> tl.tuple:
    """What each row adds to the five sums after the count, in units."""
    residual = y - p
    return (
        _units(p, 1073741824.0),
        _units(y, 1073741824.0),
        _units(residual * residual, 1073741824.0),
        _units(p * (1.0 - p), 1073741824.0),
        _units(y * (1.0 - y), 1073741824.0),
    )


@triton.jit
def _add_rows(
    to: tl.tensor,  # the count of a cell
    step: tl.tensor,  # from one sum to the next
    terms: tl.tuple,
    losses: tl.tensor,
    mine: tl.tensor,  # [BLOCK] rows of the cell
    LOSSES: tl.constexpr,
) -> None:
    count = tl.sum(mine.to(tl.int32), axis=0)
    if count > 0:
        tl.atomic_add(to, count.to(tl.int64), sem="relaxed")
        _add_total(to + step, terms[0], mine)
        _add_total(to + 2 * step, terms[1], mine)
        _add_total(to + 3 * step, terms[2], mine)
        _add_total(to + 4 * step, terms[3], mine)
        _add_total(to + 5 * step, terms[4], mine)
        if LOSSES:
            _add_total(to + 6 * step, losses, mine)


@triton.jit
def _add_each(
    to: tl.tensor,  # [BLOCK] the count of each row's cell
    step: tl.tensor,
    terms: tl.tuple,
    losses: tl.tensor,
    used: tl.tensor,  # [BLOCK]
    LOSSES: tl.constexpr,
) -> None:
    tl.atomic_add(to, terms[0] * 0 + 1, mask=used, sem="relaxed")
    tl.atomic_add(to + step, terms[0], mask=used, sem="relaxed")
    tl.atomic_add(to + 2 * step, terms[1], mask=used, sem="relaxed")
    tl.atomic_add(to + 3 * step, terms[2], mask=used, sem="relaxed")
    tl.atomic_add(to + 4 * step, terms[3], mask=used, sem="relaxed")
    tl.atomic_add(to + 5 * step, terms[4], mask=used, sem="relaxed")
    if LOSSES:
        tl.atomic_add(to + 6 * step, losses, mask=used, sem="relaxed")


@triton.jit
def _add_total(
    to: tl.tensor,
    units: tl.tensor,  # [BLOCK] int64
    mine: tl.tensor,  # [BLOCK]
) -> None:
    tl.atomic_add(to, tl.sum(tl.where(mine, units, 0), axis=0), sem="relaxed")


def reliability_sums(
    p: Tensor,  # [N, g] in [0, 1], contiguous
    y: Tensor,  # [N, g] in [0, 1]
    mask: Tensor | None = None,  # [N, g] bool, True where the label counts
    cells: int = 15,
    *,
    bins: Tensor | None = None,  # [N, g] integers, cells of the caller's choice
    log_losses: Tensor | None = None,  # [N, g] nats, 0 or more
    block: int | None = None,
) -> BinnedSums:
    """Sums of predictions and labels per position and cell, as its twin gives, bit for bit.

    Args:
        p: predictions, cast to float32.
        y: labels, cast to float32; anything where the mask is False.
        mask: what counts; all when None.
        cells: C.
        bins: cells instead of p's own; −1 or C leave a row out.
        log_losses: loss of each cell.
        block: rows a step, a power of two.
    """
    rows, gamma = p.shape
    with_losses = log_losses is not None
    size = (len(SUM_NAMES) if with_losses else len(SUM_NAMES) - 1, gamma, cells)
    sums = torch.zeros(size, dtype=torch.int64, device=p.device)
    invalid = torch.zeros(gamma, dtype=torch.int64, device=p.device)
    if rows == 0:
        return BinnedSums(sums, invalid)
    size_of_block = block or _BLOCK
    with torch.cuda.device_of(p):
        sums_kernel[(triton.cdiv(rows, size_of_block), gamma)](
            _dense(p), _dense(y), _dense(mask), _dense(bins), _dense(log_losses), sums, invalid,
            rows, gamma, cells,
            MASKED=mask is not None, BINS=bins is not None, LOSSES=with_losses,
            FEW=cells <= _FEW_CELLS, BLOCK=size_of_block, **_OPTIONS,
        )  # fmt: skip
    return BinnedSums(sums, invalid)


def _dense(values: Tensor | None) -> Tensor | None:
    """Row-major values; bool as bytes, which pointers can name."""
    if values is None:
        return None
    dense = values.contiguous()
    return dense.view(torch.uint8) if dense.dtype is torch.bool else dense
