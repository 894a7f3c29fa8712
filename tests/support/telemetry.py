"""Synthetic telemetry in the shape of the shipped file, with a known truth.

Each block has true log-odds η_k of acceptance given everything before; labels are coins with
σ(η_k). The recorded logit is z_k = T_k·η_k, so that σ(z_k) is over-confident by a known
temperature and σ(z_k / T_k) is exactly calibrated. With ``leak`` the next η moves with the outcome
that was just drawn, before it is known to the engine, which is what a head does that sees the
sampled token: conditionals stay calibrated, their product does not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calib.record_schema import Flag
from calib.records import AcceptanceRecords

GAMMA = 7
TEMPERATURES = (1.25, 1.35, 1.45, 1.5, 1.45, 1.4, 1.35)
DOMAINS = ("math", "code", "chat")
SAMPLING_TEMPERATURES = (1.0, 0.6, 0.0)

_DOMAIN_EASE = {"math": 0.5, "code": 0.9, "chat": -0.1}


def synthetic_columns(
    rows: int = 3000,
    *,
    gamma: int = GAMMA,
    prompts: int = 120,
    leak: float = 0.0,
    seed: int = 0,
) -> dict[str, Any]:
    """Columns for ``AcceptanceRecords.from_columns``.

    Args:
        rows: blocks.
        gamma: positions; temperatures repeat beyond the seventh.
        prompts: clusters; each has one domain, one sampling temperature and its own difficulty.
        leak: how strongly η_{k+1} moves with y_k - c_k.
        seed: of everything drawn.
    """
    draw = np.random.default_rng(seed)
    prompt = draw.integers(0, prompts, rows)
    domain = np.array(DOMAINS, dtype=object)[np.arange(prompts) % 3][prompt]
    heat = np.array(SAMPLING_TEMPERATURES)[np.arange(prompts) // 3 % 3][prompt]
    ease = np.array([_DOMAIN_EASE[name] for name in domain])
    ease += draw.normal(0.0, 0.35, prompts)[prompt] + 0.3 * (1.0 - heat)
    eta, accepted_each = _draw_blocks(draw, ease, gamma, leak)
    scale = np.resize(TEMPERATURES, gamma)
    verified = np.full(rows, gamma)
    stopped = draw.random(rows) < 0.02
    verified[stopped] = draw.integers(1, gamma + 1, int(stopped.sum()))
    accepted = np.minimum(np.cumprod(accepted_each, axis=1).sum(axis=1), verified)
    greedy = heat == 0.0
    soft = np.where(greedy[:, None], accepted_each, expit(eta))
    return {
        "confidence_logits": (eta * scale).astype(np.float32),
        "verified": verified,
        "accepted": accepted,
        "soft_labels": soft.astype(np.float32),
        "flags": np.where(stopped, int(Flag.STOP_TRUNCATED), 0),
        "sampling_temperature": heat.astype(np.float32),
        "domain": domain,
        "acceptance_rule": np.where(greedy, "greedy", "rejection").astype(object),
        "draft_mode": np.where(greedy, "greedy", "sampled").astype(object),
        "context_length": draw.integers(20, 400, rows),
        "request": np.array([f"r{index}" for index in prompt], dtype=object),
        "prompt": np.array([_hash(index) for index in prompt], dtype=object),
        "step": np.arange(rows),
    }


def synthetic_records(rows: int = 3000, **options: Any) -> AcceptanceRecords:
    """The columns of :func:`synthetic_columns` as records."""
    gamma = options.get("gamma", GAMMA)
    return AcceptanceRecords.from_columns(gamma, synthetic_columns(rows, **options))


def _draw_blocks(
    draw: np.random.Generator, ease: NDArray[np.float64], gamma: int, leak: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """η and coins, both [N, gamma]."""
    eta = np.empty((len(ease), gamma))
    coins = np.empty((len(ease), gamma), dtype=np.bool_)
    surprise = np.zeros(len(ease))
    for k in range(gamma):
        eta[:, k] = ease + draw.normal(0.0, 1.0, len(ease)) - 0.05 * k + leak * surprise
        coins[:, k] = draw.random(len(ease)) < expit(eta[:, k])
        surprise = coins[:, k] - expit(eta[:, k])
    return eta, coins


def _hash(index: int) -> str:
    return hashlib.sha256(f"prompt {index}".encode()).hexdigest()[:16]
