"""The launches of the reliability sums, for the compiler."""

from __future__ import annotations

import torch

from heads.kernels import reliability_bins
from tests.heads.kernels.compilation import Compilation
from tests.heads.kernels.recorded_launches import recorded


def _sums(
    name: str,
    *,
    cells: int,
    bins: bool = False,
    losses: bool = False,
    size: tuple[int, int] = (1000, 7),
) -> Compilation:
    values = torch.empty(size)
    with recorded(reliability_bins, name) as jobs:
        reliability_bins.reliability_sums(
            values,
            values,
            None if bins else values > 0,
            cells,
            bins=values.int() if bins else None,
            log_losses=values if losses else None,
        )
    return jobs[0]


JOBS = [
    _sums("15-bins", cells=15),
    _sums("15-bins-losses", cells=15, losses=True),
    _sums("given-bins", cells=15, bins=True),
    _sums("one-row-one-cell", cells=1, size=(1, 1)),
    _sums("fine-cells", cells=1024, losses=True),
]
