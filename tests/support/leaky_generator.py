"""Simulated draft blocks whose next logit knows something about the token just sampled.

Position i drafts one of two equally likely tokens t = ±1. Its acceptance probability is
α_i(t) = c_i + t·c_i(1 - c_i) with c_i = σ(η_i), so c_i is exactly right before the token is known;
the next log-odds move with the token, η_{i+1} = … + ρt. Conditionals therefore stay calibrated, and
their product understates survival by a covariance: a leak, stated as the partial correlation of
y_i - c_i and z_{i+1} given z_i.

Recorded logits are z_k = T_k·η_k, over-confident by known temperatures. With ``misfit`` they also
carry a bias and noise, and the outcomes a difficulty that no logit shows, so that neither a
temperature nor a slope and an intercept are exactly right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.records import AcceptanceRecords

TRUE_TEMPERATURES = np.array([1.6, 1.5, 1.5, 1.4, 1.3, 1.25, 1.2])
SHARED = 1.15  # spread of a block's difficulty, which all its logits show
OWN = 1.2  # spread of a position's own log-odds
_SPREAD = float(np.hypot(SHARED, OWN))
_MEMORY = SHARED**2 / _SPREAD**2  # correlation of neighbouring log-odds, whatever its source
_INNOVATION = _SPREAD * float(np.sqrt(1.0 - _MEMORY**2))  # spread of η_{i+1} given η_i
_BIAS = np.array([0.12, 0.1, 0.08, 0.05, 0.0, -0.03, -0.05])
_LEAK_PER_CORRELATION = 3.9  # ρ per unit of partial correlation: _INNOVATION / √E[c(1 - c)]


@dataclass(frozen=True)
class LeakyBlocks:
    """Fully verified blocks and what is true of them."""

    logits: NDArray[np.float32]  # [N, gamma] raw
    accepted: NDArray[np.int64]  # [N] what full verification accepts
    # [N, gamma]: P(n >= k) given the tokens before k; its mean given z_1 … z_k is exact survival.
    survival: NDArray[np.float64]

    @cached_property
    def prefix_mask(self) -> NDArray[np.float32]:
        """[N, gamma] survival labels."""
        gamma = self.logits.shape[1]
        return (np.arange(gamma) < self.accepted[:, None]).astype(np.float32)

    def records(self, verified: NDArray[np.integer] | None = None) -> AcceptanceRecords:
        """Telemetry of these blocks, verified as far as given; fully by default."""
        rows, gamma = self.logits.shape
        lengths = np.full(rows, gamma) if verified is None else verified
        columns = {
            "confidence_logits": self.logits,
            "verified": lengths,
            "accepted": np.minimum(self.accepted, lengths),
        }
        return AcceptanceRecords.from_columns(gamma, columns)


def simulate_leaky(
    rows: int,
    seed: int,
    *,
    partial: float = 0.0,
    gamma: int = 7,
    misfit: bool = False,
    shared: bool = False,
) -> LeakyBlocks:
    """Draw blocks.

    Args:
        rows: N.
        seed: of everything drawn.
        partial: partial correlation of y_i - c_i and z_{i+1} given z_i, 0 … 0.25.
        gamma: positions.
        misfit: add bias, noise of the head and hidden difficulty.
        shared: log-odds of a block share one difficulty, instead of each following the one
            before. Then later logits also tell about earlier tokens, and survival is no longer a
            product of hazards that see two logits each.
    """
    draw = np.random.default_rng(seed)
    leak = _LEAK_PER_CORRELATION * partial
    difficulty = SHARED * draw.normal(size=rows)
    eta = difficulty + OWN * draw.normal(size=rows)
    hidden = 0.4 * draw.normal(size=rows) if misfit else np.zeros(rows)
    center = np.linspace(1.6, 1.0, gamma)
    token = np.zeros(rows)
    reached = np.ones(rows)
    logits, coins, survival = (np.empty((rows, gamma)) for _ in range(3))
    for k in range(gamma):
        if k > 0:
            before = difficulty if shared else _MEMORY * eta
            own = np.sqrt((OWN if shared else _INNOVATION) ** 2 - leak**2)
            eta = before + leak * token + own * draw.normal(size=rows)
        chance = expit(center[k] + eta + hidden)
        survival[:, k] = reached * chance
        token = 2.0 * draw.integers(0, 2, rows) - 1.0
        given_token = chance + token * chance * (1.0 - chance)
        coins[:, k] = draw.random(rows) < given_token
        reached = reached * given_token
        shown = center[k] + eta
        if misfit:
            shown = shown + _BIAS[k % 7] + 0.3 * draw.normal(size=rows)
        logits[:, k] = TRUE_TEMPERATURES[k % 7] * shown
    accepted = np.cumprod(coins, axis=1).sum(axis=1).astype(np.int64)
    return LeakyBlocks(logits.astype(np.float32), accepted, survival)


def trimmed_lengths(
    logits: NDArray[np.float32],  # [N, gamma] raw; N is cut to whole steps
    requests: int = 128,
) -> NDArray[np.int64]:
    """Verified lengths of an early-stopping prefix scheduler that trusts the raw confidences.

    Steps of ``requests`` blocks; positions are admitted by descending survival while throughput
    τ·SPS(B) rises (paper, Algorithm 1), with a step time of (1 + (B / 256)⁴)^¼. Survival never
    rises along a block, so what is admitted is a prefix, and whether position k is verified depends
    on logits up to k and on other requests only.
    """
    gamma = logits.shape[1]
    survival = np.cumprod(expit(logits.astype(np.float64)), axis=1)
    lengths = np.zeros(len(logits), dtype=np.int64)
    for start in range(0, len(logits), requests):
        block = survival[start : start + requests]
        size = len(block)
        order = np.argsort(-block.ravel(), kind="stable")
        admitted = np.arange(len(order) + 1)
        tau = size + np.concatenate([[0.0], np.cumsum(block.ravel()[order])])
        throughput = tau / (1.0 + ((size + admitted) / 256.0) ** 4) ** 0.25
        falls = np.flatnonzero(np.diff(throughput) < 0.0)
        stop = int(falls[0]) if len(falls) else len(order)
        chosen = np.zeros(size * gamma, dtype=np.int64)
        chosen[order[:stop]] = 1
        lengths[start : start + size] = chosen.reshape(size, gamma).sum(axis=1)
    return lengths


def survival_ece(
    predicted: NDArray[np.floating],  # [N, gamma]
    blocks: LeakyBlocks,
    n_bins: int = 15,
) -> NDArray[np.float64]:
    """[gamma] binned error of predicted survival against exact survival."""
    errors = []
    for k in range(predicted.shape[1]):
        p = predicted[:, k].astype(np.float64)
        bins = np.minimum((p * n_bins).astype(int), n_bins - 1)
        errors.append(np.abs(np.bincount(bins, p - blocks.survival[:, k])).sum() / len(p))
    return np.array(errors)
