"""Observed labels of a batch, counted once for every likelihood-ratio detector that reads them.

A label enters a detector through three things: its position, the cell of its confidence and
whether the token was accepted. A batch is therefore a sparse matrix of counts,

    [position and block of rows] × [cell and label],

and what a detector makes of it is a product with its own table of log e-values. Levels that watch
one stream share the matrix, and segments are rows of one matrix too: their rows are put side by
side and cut into blocks where each segment's own blocks end.

Letters: N rows, γ draft positions, B blocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from monitoring.detectors.observations import Observations

__all__ = ["CELLS", "label_counts"]

CELLS: Final = 2048
"""Of the confidence; a power of two: c · CELLS is exact in fp32."""


def label_counts(
    observations: Observations,
    offsets: NDArray[np.intp],  # [B] first row of each block, ascending from 0
) -> csr_array:
    """Labels by position and block, and by cell and label: [γ · B, 2 · CELLS].

    Row k·B + b holds the labels of position k + 1 in block b, column 2i + y those of cell i with
    label y. Labels are the observed ones, k ≤ min(n + 1, ℓ).
    """
    rows, gamma, blocks = len(observations), observations.gamma, len(offsets)
    cells = (observations.conditional.T * np.float32(CELLS)).astype(np.int32, order="C")
    np.minimum(cells, CELLS - 1, out=cells)
    cells *= 2
    index = np.arange(gamma, dtype=np.int16)[:, None]
    cells += index < observations.accepted
    reached = np.minimum(observations.accepted.astype(np.int16) + 1, observations.verified)
    observed = index < reached
    chosen = cells[observed]
    ends = np.zeros(gamma * rows + 1, dtype=np.int32)
    np.cumsum(observed.ravel(), out=ends[1:])
    starts = (np.arange(gamma)[:, None] * rows + offsets).ravel()
    bounds = np.append(ends[starts], np.int32(len(chosen)))
    return csr_array((np.ones(len(chosen)), chosen, bounds), shape=(gamma * blocks, 2 * CELLS))
