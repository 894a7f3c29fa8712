"""Synthetic traffic with known truth, for tests and benchmarks of detectors and gates.

Two generators. :func:`heads_traffic` follows the measured baselines: γ = 7, heterogeneous logits
with a shared difficulty, about 3.5 observed labels a row, labels independent given the logits.
:func:`leaky_traffic` is the case that separates right from wrong statistics: every conditional
confidence is perfect, and the next logit reveals which token was sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtr

from monitoring.detectors.observations import Observations

GAMMA = 7
SHARED_LUCK = 0.0335
_MEANS = np.array([1.75, 1.3, 1.15, 1.1, 1.1, 1.1, 1.1])

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Traffic:
    """Rows with the true conditional probability of each label.

    ``conditional`` is what a perfect model says; ``survival`` is exact given z_{≤k}.
    """

    conditional: Array  # [N, γ]
    survival: Array  # [N, γ]
    verified: Array  # [N]
    accepted: Array  # [N]

    def __len__(self) -> int:
        return len(self.verified)

    def served(self, slope: float | Array = 1.0, shift: float | Array = 0.0) -> Observations:
        """Observations of a champion that says σ(slope · logit(c) + shift)."""
        said = expit(slope * logit(self.conditional) + shift).astype(np.float32)
        survival = np.cumprod(said, axis=1, dtype=np.float32)
        if np.all(np.equal(slope, 1.0)) and np.all(np.equal(shift, 0.0)):
            survival = self.survival.astype(np.float32)
        return Observations(said, self.verified, self.accepted, survival)


def heads_traffic(
    rng: np.random.Generator,
    rows: int,
    *,
    gamma: int = GAMMA,
    center: float | Array = 0.0,  # added to every true logit: harder or easier traffic
    spread: float = 1.0,
    threshold: float | None = None,  # early stop where survival falls below it
) -> Traffic:
    """Traffic without token leak."""
    shared = rng.normal(size=(rows, 1))
    logits = 1.15 * shared + 1.2 * rng.normal(size=(rows, gamma))
    means = np.resize(_MEANS, gamma)
    truth = expit(means + spread * logits + np.reshape(center, (-1, 1)))
    labels = rng.random((rows, gamma)) < truth
    return _observed(truth, np.cumprod(truth, axis=1), labels, threshold)


def leaky_traffic(
    rng: np.random.Generator, rows: int, *, gamma: int = GAMMA, threshold: float | None = 0.4
) -> Traffic:
    """Perfect conditional confidence, next logit reveals the token, threshold trimming (case M7).

    Each position draws one of two tokens by a fair coin; they are accepted with c ± h. The next
    confidence is high after the easy token and low after the hard one, so it tells which it was.
    """
    tokens = rng.random((rows, gamma)) < 0.5
    confidence = np.empty((rows, gamma))
    easy = rng.random(rows) < 0.5
    for k in range(gamma):
        drawn = rng.uniform(0.0, 0.3, rows)
        confidence[:, k] = np.where(easy, 0.68 + drawn, 0.3 + drawn)
        easy = tokens[:, k]
    gap = 0.9 * np.minimum(confidence, 1.0 - confidence)
    acceptance = np.where(tokens, confidence + gap, confidence - gap)
    labels = rng.random((rows, gamma)) < acceptance
    before = np.cumprod(acceptance, axis=1) / acceptance  # ∏_{i<k}: the tokens before are known
    return _observed(confidence, before * confidence, labels, threshold)


def shared_luck_traffic(
    rng: np.random.Generator,
    rows: int,
    *,
    correlation: float = SHARED_LUCK,
    request_rows: int = 100,
    side_by_side: int = 64,
) -> Traffic:
    """Heads traffic whose rows share luck within a request, and are calibrated over requests.

    ``side_by_side`` requests of ``request_rows`` rows each take turns. n is the number of survivals
    above a uniform number of the row, so that P(n ≥ k) = a_k exactly; the numbers of one request
    are ranks of equally correlated normals. :data:`SHARED_LUCK` gives conditional residuals an
    intraclass correlation of .025, what the shipped recording shows.
    """
    heads = heads_traffic(rng, rows)
    index = np.arange(rows)
    turn = index // side_by_side + rng.integers(0, request_rows, side_by_side)[index % side_by_side]
    luck = rng.normal(size=(side_by_side, int(turn.max()) // request_rows + 1))
    own = luck[index % side_by_side, turn // request_rows]
    mixed = np.sqrt(correlation) * own + np.sqrt(1.0 - correlation) * rng.normal(size=rows)
    accepted = (ndtr(mixed)[:, None] < heads.survival).sum(axis=1).astype(np.uint8)
    return replace(heads, accepted=accepted)


def miscalibrated(traffic: Traffic, first: int, *, slope: float = 1.0, shift: float = 0.0) -> Any:
    """Observations whose champion is perfect before row ``first`` and off afterwards."""
    good, bad = traffic.served(), traffic.served(slope, shift)
    late = np.arange(len(traffic))[:, None] >= first
    return replace(
        good,
        conditional=np.where(late, bad.conditional, good.conditional),
        survival=np.where(late, bad.survival, good.survival),
    )


def _observed(truth: Array, survival: Array, labels: Array, threshold: float | None) -> Traffic:
    rows, gamma = truth.shape
    verified = np.full(rows, gamma, dtype=np.uint8)
    if threshold is not None:
        # {ℓ ≥ k} is decided by z_{≤k}: an early stop, as a lossless scheduler needs it.
        kept = np.cumprod(np.cumprod(truth, axis=1) >= threshold, axis=1)
        verified = kept.sum(axis=1).astype(np.uint8)
    accepted = np.minimum(np.cumprod(labels, axis=1).sum(axis=1), verified).astype(np.uint8)
    return Traffic(truth, survival, verified, accepted)
