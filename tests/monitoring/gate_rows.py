"""Two models on the same traffic, ready to be scored."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, logit

from monitoring.promotion_gate_scores import ScoredRows
from tests.monitoring.traffic import Traffic

EXACT = (1.0, 0.0)  # slope and shift of a model that tells the truth

Model = tuple[Any, Any]


def scored(
    traffic: Traffic,
    champion: Model,
    challenger: Model,
    *,
    first: int = 0,
    segment: np.ndarray | None = None,
    affine: tuple[Model, Model] | None = None,
) -> ScoredRows:
    """Rows of two models σ(slope · logit(truth) + shift); ingested from ``first`` on.

    ``affine`` gives what the two serve by slopes and intercepts, where that is something else.
    """
    before, after = (
        expit(slope * logit(traffic.conditional) + shift).astype(np.float32)
        for slope, shift in (champion, challenger)
    )
    return ScoredRows(
        before,
        after,
        traffic.verified,
        traffic.accepted,
        first + np.arange(len(traffic)),
        np.cumprod(before, axis=1, dtype=np.float32),
        np.cumprod(after, axis=1, dtype=np.float32),
        segment,
        *([] if affine is None else [survival(traffic, model) for model in affine]),
    )


def survival(traffic: Traffic, model: Model) -> np.ndarray:
    slope, shift = model
    conditional = expit(slope * logit(traffic.conditional) + shift).astype(np.float32)
    return np.cumprod(conditional, axis=1, dtype=np.float32)


def fitted(rng: np.random.Generator, rows: int) -> Model:
    """What a fit of the exact model on ``rows`` rows gives: per-position noise of that size."""
    information = rows * np.array([0.15, 0.11, 0.08, 0.055, 0.04, 0.03, 0.02])
    noise = rng.normal(size=(2, 7)) / np.sqrt(information)
    return 1.0 + noise[0], noise[1]
