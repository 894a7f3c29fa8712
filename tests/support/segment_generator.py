"""Simulated traffic of several segments that one calibration cannot serve.

Segment s drafts blocks with log-odds η_k = mean_k + ease_s + shared + own, and records the logits
z_k = T_k·stretch_s·(η_k + bias_s + residual_{s,k}): it is over-confident by its own factor, off by
its own bias, and accepted at its own rate. The affine form of a segment is exactly right for it,
and a temperature is not. ``residual`` is what positions of a segment do not share, 0 unless asked.

The shape was chosen so that raw logits and one pooled STS are as wrong as the published study of
such traffic found them (shares 35 … 1 %: pooled STS off by about .039 on the mean segment and by
.09 on the worst, and slower than the oracle by about .9 %).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.records import AcceptanceRecords
from tests.support.leaky_generator import OWN, SHARED, TRUE_TEMPERATURES, LeakyBlocks

SHARES = np.array([0.35, 0.22, 0.15, 0.11, 0.08, 0.05, 0.03, 0.01])
STRETCH = np.array([0.89, 1.16, 1.0, 1.25, 0.93, 1.04, 0.96, 1.09])
BIAS = np.array([-0.19, 0.18, 0.03, 0.26, -0.12, 0.07, -0.03, 0.1])
EASE = np.array([0.21, -0.21, 0.0, -0.42, 0.3, -0.12, 0.18, 0.0])
NAMES = ("chat", "code", "math", "law", "news", "data", "prose", "rare")


@dataclass(frozen=True)
class SegmentedBlocks:
    """Blocks, what is true of them, and the segment of each."""

    blocks: LeakyBlocks
    segment: NDArray[np.intp]  # [N]

    @property
    def domain(self) -> NDArray[np.object_]:
        """[N] name of each row's segment."""
        return np.array(NAMES, dtype=object)[self.segment]

    def records(self, verified: NDArray[np.integer] | None = None) -> AcceptanceRecords:
        """Telemetry of these blocks with their domain, verified as far as given."""
        rows, gamma = self.blocks.logits.shape
        lengths = np.full(rows, gamma) if verified is None else verified
        columns = {
            "confidence_logits": self.blocks.logits,
            "verified": lengths,
            "accepted": np.minimum(self.blocks.accepted, lengths),
            "domain": self.domain,
        }
        return AcceptanceRecords.from_columns(gamma, columns)


def simulate_segments(
    rows: int,
    seed: int,
    *,
    spread: float = 1.0,
    residual: float = 0.0,
    gamma: int = 7,
) -> SegmentedBlocks:
    """Draw blocks of segments in random order.

    Args:
        rows: N.
        seed: of everything drawn but the residuals.
        spread: 0 makes the segments alike, 1 is the shape described above.
        residual: standard deviation of what positions of a segment do not share.
        gamma: positions.
    """
    draw = np.random.default_rng(seed)
    segment = draw.choice(len(SHARES), rows, p=SHARES)
    offsets = residual * np.random.default_rng(7).normal(size=(len(SHARES), gamma))
    difficulty = SHARED * draw.normal(size=(rows, 1)) + spread * EASE[segment][:, None]
    eta = np.linspace(1.6, 1.0, gamma) + difficulty + OWN * draw.normal(size=(rows, gamma))
    chance = expit(eta)
    survival = np.cumprod(chance, axis=1)
    accepted = np.cumprod(draw.random((rows, gamma)) < chance, axis=1).sum(axis=1)
    stretch = 1.0 + spread * (STRETCH[segment][:, None] - 1.0)
    shown = eta + spread * BIAS[segment][:, None] + offsets[segment]
    logits = np.resize(TRUE_TEMPERATURES, gamma) * stretch * shown
    blocks = LeakyBlocks(logits.astype(np.float32), accepted.astype(np.int64), survival)
    return SegmentedBlocks(blocks, segment)


def segment_errors(
    predicted: NDArray[np.floating],  # [N, gamma]
    traffic: SegmentedBlocks,
    n_bins: int = 15,
) -> NDArray[np.float64]:
    """[segments] binned error against exact survival, mean over positions, NaN without rows."""
    truth, gamma = traffic.blocks.survival, predicted.shape[1]
    errors = np.full(len(SHARES), np.nan)
    for index in range(len(SHARES)):
        rows = np.flatnonzero(traffic.segment == index)
        if not len(rows):
            continue
        p, residual = predicted[rows].astype(np.float64), predicted[rows] - truth[rows]
        bins = np.minimum((p * n_bins).astype(int), n_bins - 1) + n_bins * np.arange(gamma)
        sums = np.bincount(bins.ravel(), residual.ravel(), n_bins * gamma)
        errors[index] = np.abs(sums).sum() / (len(rows) * gamma)
    return errors
