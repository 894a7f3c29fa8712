"""Reliability sums in eager torch: the twin of ``heads.kernels.reliability_bins``.

The sums of :class:`calib.reliability.ReliabilitySums`, bit for bit, without a copy to the host:
per position and cell an int64 of 2**-30 units (log losses 2**-24 nats), so any order of rows, any
split and any device give the same bits.

Letters: N rows, g positions, C cells (bins, or the fine cells behind equal-mass bins).

    sum                  term of a row, in float64 before it is rounded to nearest, ties to even
    count                1
    sum_p, sum_y         p, y
    squared residual     (y − p)²
    variance             p·(1 − p)
    label variance       y·(1 − y)
    log loss             min(loss, 4096)

The cell of p is ``min(floor(p·C), C − 1)`` in float32, or the caller's; a cell outside 0 … C − 1
is no cell, and its row counts nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calib.errors import InvalidInputError
from calib.reliability import (
    FINE_CELLS,
    FRACTION_BITS,
    LOSS_BITS,
    LOSS_CAP,
    Binning,
    ReliabilitySums,
    check_bins,
)

SUM_NAMES = (
    "count",
    "sum_p",
    "sum_y",
    "sum_squared_residual",
    "sum_variance",
    "sum_label_variance",
    "sum_log_loss",
)


@dataclass(frozen=True, slots=True, eq=False)
class BinnedSums:
    """Sums on the device that made them; add two of one shape to merge them exactly.

    Attributes:
        sums: [6 or 7, g, C] int64 in the order of ``SUM_NAMES``; the seventh where losses were
            given.
        invalid: [g] int64, counted values that lie outside [0, 1] or are NaN; they are in no sum.
    """

    sums: Tensor
    invalid: Tensor

    def __add__(self, other: BinnedSums) -> BinnedSums:
        """Merge exactly."""
        return BinnedSums(self.sums + other.sums, self.invalid + other.invalid)

    def to_host(self, n_bins: int, binning: Binning = Binning.EQUAL_WIDTH) -> ReliabilitySums:
        """The sums as NumPy holds them; waits for the device.

        Args:
            n_bins: bins the cells are read as.
            binning: equal width (cells are bins) or equal mass (cells are the fine cells).

        Raises:
            InvalidInputError: some values were outside [0, 1], or the cells do not fit the bins.
        """
        wrong = int(self.invalid.sum())
        if wrong:
            raise InvalidInputError(
                "p", f"{wrong} values", "outside [0, 1] or NaN in p or y; mask what is unknown"
            )
        cells = cells_of(n_bins, binning)
        if self.sums.shape[-1] != cells:
            raise InvalidInputError("n_bins", n_bins, f"these sums have {self.sums.shape[-1]}")
        columns = dict(zip(SUM_NAMES, self.sums.cpu().numpy(), strict=False))
        return ReliabilitySums(n_bins, binning, **columns)


def cells_of(n_bins: int, binning: Binning = Binning.EQUAL_WIDTH) -> int:
    """Cells that the sums of a binning are kept on."""
    return FINE_CELLS if binning is Binning.EQUAL_MASS else check_bins(n_bins)


def reliability_sums(
    p: Tensor,  # [N, g] in [0, 1]
    y: Tensor,  # [N, g] in [0, 1], hard or soft
    mask: Tensor | None = None,  # [N, g] bool, True where the label counts
    cells: int = 15,
    *,
    bins: Tensor | None = None,  # [N, g] integers, cells of the caller's choice
    log_losses: Tensor | None = None,  # [N, g] nats, 0 or more
    block: int | None = None,
) -> BinnedSums:
    """Sums of predictions and labels per position and cell.

    Args:
        p: predictions, cast to float32.
        y: labels, cast to float32; anything where the mask is False.
        mask: what counts; all when None.
        cells: C.
        bins: cells instead of p's own; −1 or C leave a row out.
        log_losses: loss of each cell.
        block: of the kernel; nothing here.
    """
    gamma = p.shape[1]
    p32, y32 = p.float(), y.float()
    used = torch.ones_like(p32, dtype=torch.bool) if mask is None else mask.bool()
    valid = (p32 >= 0.0) & (p32 <= 1.0) & (y32 >= 0.0) & (y32 <= 1.0)
    if log_losses is not None:
        valid &= log_losses >= 0.0
    invalid = (used & ~valid).sum(dim=0)
    if bins is None:
        scaled = torch.where(valid, p32, 0.0) * torch.tensor(float(cells), dtype=torch.float32)
        index = scaled.long().clamp(max=cells - 1)
    else:
        index = bins.long()
    used &= valid & (index >= 0) & (index < cells)
    flat = (torch.arange(gamma, device=p.device) * cells + index)[used]
    terms = _terms(p32[used].double(), y32[used].double())
    if log_losses is not None:
        losses = log_losses[used].double().clamp(max=LOSS_CAP)
        terms.append(torch.round(losses * 2.0**LOSS_BITS).long())
    sums = torch.zeros(len(terms), gamma * cells, dtype=torch.int64, device=p.device)
    for total, term in zip(sums, terms, strict=True):
        total.index_add_(0, flat, term)
    return BinnedSums(sums.view(-1, gamma, cells), invalid)


def _terms(p: Tensor, y: Tensor) -> list[Tensor]:
    """What each counted row adds, in units; int64."""
    residual = y - p
    values = (p, y, residual * residual, p * (1.0 - p), y * (1.0 - y))
    units = [torch.round(value * 2.0**FRACTION_BITS).long() for value in values]
    return [torch.ones_like(units[0]), *units]
