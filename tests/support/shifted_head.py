"""A head whose logits lie around zero and are off by a constant: only an intercept mends it.

σ(z/T) turns about one half, and the mean logit is zero: no temperature moves the mean forecast.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from calib.records import AcceptanceRecords

GAMMA = 2


def shifted_head(rows: int = 20_000, shift: float = 0.3, *, seed: int = 0) -> AcceptanceRecords:
    """Blocks of 20 a prompt; accepted with σ(z − shift), z standard normal.

    Args:
        rows: blocks.
        shift: over-confidence in log-odds.
        seed: of everything drawn.
    """
    draw = np.random.default_rng(seed)
    logits = draw.standard_normal((rows, GAMMA)).astype(np.float32)
    hit = draw.random((rows, GAMMA)) < expit(logits - shift)
    prompts = np.array([f"prompt {row // 20}" for row in range(rows)], dtype=object)
    columns = {
        "confidence_logits": logits,
        "verified": np.full(rows, GAMMA, dtype=np.uint8),
        "accepted": np.cumprod(hit, axis=1).sum(axis=1).astype(np.uint8),
        "prompt": prompts,
    }
    return AcceptanceRecords.from_columns(GAMMA, columns)
