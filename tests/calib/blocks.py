"""Simulated blocks for the tests of temperature fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TRUE_TEMPERATURES = np.array([1.6, 1.5, 1.5, 1.4, 1.3, 1.25, 1.2])


@dataclass(frozen=True)
class Blocks:
    """Rows of an over-confident head whose temperature model is exactly right."""

    logits: NDArray[np.float32]  # [N, gamma] raw
    accepted: NDArray[np.int64]  # [N] what full verification accepts
    true_survival: NDArray[np.float64]  # [N, gamma]

    @property
    def prefix_mask(self) -> NDArray[np.float32]:
        """[N, gamma] as SGLang's collector writes it."""
        gamma = self.logits.shape[1]
        return (np.arange(gamma) < self.accepted[:, None]).astype(np.float32)


def simulate(rows: int, seed: int, gamma: int = 7) -> Blocks:
    """Labels independent given the logits; a shared difficulty per block."""
    rng = np.random.default_rng(seed)
    center = np.linspace(1.6, 1.0, gamma)
    true = center + 1.15 * rng.normal(size=(rows, 1)) + 1.2 * rng.normal(size=(rows, gamma))
    chance = 1.0 / (1.0 + np.exp(-true))
    accepted = np.cumprod(rng.random((rows, gamma)) < chance, axis=1).sum(axis=1)
    temperatures = np.resize(TRUE_TEMPERATURES, gamma)
    logits = (temperatures * true).astype(np.float32)
    survival: NDArray[np.float64] = np.cumprod(chance, axis=1, dtype=np.float64)
    return Blocks(logits, accepted.astype(np.int64), survival)
