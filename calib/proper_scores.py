"""Proper scores: Brier and log loss, and the log-odds they need.

Everything is computed from log-odds, never from a rounded probability: σ(40) is exactly 1 in
fp32, and a rejected row there must cost 40 nats, not infinity and not a clipped 17.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from calib.bin_sums import BinSums, Floats

# Log-odds near the ends of fp32: 1 - 2**-25 rounds to 1, 2**-151 to 0.
_LOGIT_OF_ONE = float(np.log(2.0**25 - 1.0))
_LOGIT_OF_ZERO = -151.0 * float(np.log(2.0))


def log_losses(
    logits: ArrayLike,  # any shape, finite log-odds of the prediction
    y: ArrayLike,  # same shape, labels in [0, 1]
) -> Floats:
    """Log loss (binary cross-entropy) of each cell in nats, >= 0 and finite.

    -y log σ(z) - (1 - y) log(1 - σ(z)), as max(z, 0) - yz + log(1 + exp(-|z|)) in fp64. A soft
    label keeps its own entropy: the least possible loss at y is H(y), not 0.

    Examples:
        >>> log_losses([40.0, 0.0], [0.0, 1.0]).round(6).tolist()
        [40.0, 0.693147]
    """
    z = np.asarray(logits, dtype=np.float64)
    label = np.asarray(y, dtype=np.float64)
    missed = np.where(z > 0.0, (1.0 - label) * z, -label * z)
    return missed + np.log1p(np.exp(-np.abs(z)))


def probability_logits(p: ArrayLike) -> Floats:
    """Log-odds of fp32 probabilities, finite also at 0 and 1.

    An fp32 probability of exactly 1 (0) stands for all values that round to it and gets about
    the least extreme of their log-odds, 17.3 (-104.7). Losses from it are lower bounds; give
    logits where there are some.

    Args:
        p: probabilities in [0, 1], any shape.
    """
    probability = np.asarray(p, dtype=np.float32).astype(np.float64)
    with np.errstate(divide="ignore"):
        logits = special.logit(probability)
    return np.asarray(np.clip(logits, _LOGIT_OF_ZERO, _LOGIT_OF_ONE), dtype=np.float64)


def survival_logits(conditional_logits: ArrayLike) -> Floats:
    """Log-odds of the survivals a_k = ∏_{i≤k} σ(z_i), finite for any finite logits.

    log a_k is a sum of log σ(z_i). 1 - a_k is built as (1 - a_{k-1}) + a_{k-1}(1 - c_k) in log
    space: a sum of positive terms, so nothing cancels and no logarithm of 0 is taken even where
    every factor rounds to 1.

    Args:
        conditional_logits: [N, g] log-odds of the conditional confidences.

    Returns:
        [N, g] fp64.
    """
    z = np.asarray(conditional_logits, dtype=np.float64)
    shared = np.log1p(np.exp(-np.abs(z)))
    log_accept = np.minimum(z, 0.0) - shared
    log_reject = np.minimum(-z, 0.0) - shared
    log_survival = np.cumsum(log_accept, axis=-1)
    log_stopped = log_reject.copy()
    for k in range(1, z.shape[-1]):
        log_stopped[..., k] = np.logaddexp(
            log_stopped[..., k - 1], log_survival[..., k - 1] + log_reject[..., k]
        )
    return np.asarray(log_survival - log_stopped, dtype=np.float64)


def brier_score(sums: BinSums) -> float | None:
    """Mean squared residual (y - p)² in [0, 1]; None without rows."""
    total = sums.total_weight
    return float(sums.sum_squared_residual.sum()) / total if total > 0 else None
