"""Resampled totals of a sequence whose neighbours share luck: the circular block bootstrap.

Steps of an engine are no independent draws: a request stays for many of them. Whole blocks of
consecutive steps are drawn instead, long enough to hold what neighbours share; the sequence is
closed to a ring, so that every step is drawn equally often.

Letters: S steps, C columns, b block length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from calib.errors import ConfigurationError

__all__ = ["block_totals", "bootstrap_interval"]

Floats = NDArray[np.float64]

_GATHERED = 1 << 20  # numbers gathered at once: bounds the memory


def block_totals(
    values: Floats,  # [S, C] in order of time
    block_length: int,  # b, 1 … S
    *,
    replicates: int = 1000,
    seed: int = 0,
) -> Floats:
    """Column totals of resampled sequences, [replicates, C].

    Every replicate holds ⌈S / b⌉ blocks, so its totals are those of ⌈S / b⌉·b steps: compare
    ratios of columns, not totals.

    Raises:
        ConfigurationError: a block length outside 1 … S, or fewer than 1 replicate.
    """
    steps = len(values)
    if not 1 <= block_length <= steps:
        raise ConfigurationError("block_length", block_length, f"give 1 … {steps} steps")
    if replicates < 1:
        raise ConfigurationError("replicates", replicates, "give at least 1")
    ring = np.concatenate([values, values[: block_length - 1]])
    running = np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(ring, axis=0)])
    blocks = running[block_length:] - running[:-block_length]  # [S, C] by first step
    draw = np.random.default_rng(seed)
    drawn = -(-steps // block_length)
    totals = np.empty((replicates, values.shape[1]))
    most = max(1, _GATHERED // (drawn * values.shape[1]))
    for start in range(0, replicates, most):
        part = totals[start : start + most]
        part[:] = blocks[draw.integers(0, steps, (len(part), drawn))].sum(axis=1)
    return totals


def bootstrap_interval(
    samples: Floats,  # [replicates] of the statistic
    estimate: float,
    blocks: int,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Interval of a smooth statistic around its estimate.

    Its half-width is Student's t at ``blocks`` − 1 degrees of freedom times the spread of the
    samples. Percentiles of so few blocks would be too narrow by a tenth: resampling knows the
    blocks' own mean, and nothing of how uncertain their spread is.

    Raises:
        ConfigurationError: a confidence outside (0, 1), or fewer than 2 blocks.
    """
    if not 0.0 < confidence < 1.0:
        raise ConfigurationError("confidence", confidence, "give a share in (0, 1)")
    if blocks < 2:
        raise ConfigurationError("blocks", blocks, "give at least 2 blocks")
    spread = float(np.std(samples)) * (blocks / (blocks - 1)) ** 0.5
    half = float(stats.t.isf(0.5 * (1.0 - confidence), blocks - 1)) * spread
    return estimate - half, estimate + half
