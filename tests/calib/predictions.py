"""Simulated predictions with a known calibration error, for the tests of the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

from calib.reliability import bin_index

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """Rows of one position."""

    logits: Floats  # [N]
    p: Floats  # [N] σ(logits)
    y: Floats  # [N] hard or soft labels
    clusters: NDArray[np.int64]  # [N]


def draw(
    rng: np.random.Generator,
    rows: int,
    *,
    temperature: float = 1.0,
    shift: float = 0.0,
    centre: float = 1.0,
    soft: bool = False,
    cluster_size: int = 1,
    correlation: float = 0.0,
) -> Predictions:
    """Labels with mean σ(z / temperature + shift) given z; p = σ(z) claims temperature 1, shift 0.

    Labels of a cluster share a normal factor with the given correlation, logits one with 0.3, so
    every label alone keeps its mean.
    """
    clusters = np.arange(rows) // cluster_size
    shared = rng.normal(size=(2, clusters[-1] + 1))[:, clusters]
    own = rng.normal(size=(2, rows))
    mix = 0.3 if cluster_size > 1 else 0.0
    z = centre + 1.5 * (np.sqrt(mix) * shared[0] + np.sqrt(1.0 - mix) * own[0])
    mean = expit(z / temperature + shift)
    if soft:
        y = rng.beta(np.maximum(4.0 * mean, 1e-3), np.maximum(4.0 * (1.0 - mean), 1e-3))
    else:
        uniform = ndtr(np.sqrt(correlation) * shared[1] + np.sqrt(1.0 - correlation) * own[1])
        y = (uniform < mean).astype(np.float64)
    return Predictions(z, expit(z), y, clusters)


def true_l2_error(temperature: float, shift: float, centre: float = 1.0) -> float:
    """The binned L2 calibration error that :func:`draw` has at infinitely many rows."""
    grid = np.linspace(-8.0, 8.0, 200_001)
    z, weight = centre + 1.5 * grid, np.exp(-0.5 * grid * grid)
    weight /= weight.sum()
    p = expit(z)
    bins = bin_index(p, 15)
    share = np.bincount(bins, weights=weight, minlength=15)
    gap = np.bincount(bins, weights=weight * (expit(z / temperature + shift) - p), minlength=15)
    return float(np.sqrt(np.sum(gap[share > 0] ** 2 / share[share > 0])))


def plain_reference(p: Any, y: Any, n_bins: int = 15) -> dict[str, float]:
    """ECE, worst gap, Brier and cross-entropy, row by row in Python floats."""
    rows: dict[int, list[tuple[float, float]]] = {}
    for prediction, label in zip(np.float32(p).tolist(), np.float32(y).tolist(), strict=True):
        index = min(int(np.floor(np.float32(prediction) * np.float32(n_bins))), n_bins - 1)
        rows.setdefault(index, []).append((prediction, label))
    total = sum(len(members) for members in rows.values())
    gaps = {
        index: abs(sum(label - prediction for prediction, label in members) / len(members))
        for index, members in rows.items()
    }
    everything = [pair for members in rows.values() for pair in members]
    return {
        "ece": sum(gaps[index] * len(members) for index, members in rows.items()) / total,
        "worst_bin_gap": max(gaps.values()),
        "brier": sum((label - prediction) ** 2 for prediction, label in everything) / total,
        "log_loss": -sum(
            label * np.log(prediction) + (1.0 - label) * np.log1p(-prediction)
            for prediction, label in everything
        )
        / total,
    }
