"""Rows of scores to try kernels on, and their labels and losses in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MINUS_INFINITY = float("-inf")


def scores(
    rows: int,
    vocabulary: int,
    *,
    draft: torch.dtype = torch.float32,
    target: torch.dtype = torch.float32,
    seed: int = 0,
    masked: bool = False,
) -> tuple[Tensor, Tensor]:
    """Two related rows each: acceptance between a half and nine tenths, some tokens masked."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, vocabulary, generator=generator) * 3
    y = x + torch.randn(rows, vocabulary, generator=generator)
    if masked and vocabulary > 2:
        gone = torch.rand(2, rows, vocabulary, generator=generator) < 0.3
        gone[:, :, 1] = False
        x, y = x.masked_fill(gone[0], MINUS_INFINITY), y.masked_fill(gone[1], MINUS_INFINITY)
    return x.to(draft), y.to(target)


def probabilities(
    logits: Tensor,  # [R, V] any floats
    temperature: Tensor,  # [R] float
) -> Tensor:
    """Softmax in float64 at each row's temperature; one-hot at 0, lowest id among equals."""
    x = logits.double()
    warm = torch.where(temperature > 0, temperature, 1.0).double()[:, None]
    soft = torch.softmax((x - x.amax(-1, keepdim=True)) / warm, dim=-1)
    best = torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)
    return torch.where(temperature[:, None] > 0, soft, best)


@dataclass(frozen=True)
class Expected:
    """Float64 results, [R]."""

    label: Tensor
    distance: Tensor
    log_probability: Tensor
    confidence_error: Tensor


def expected(
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    *,
    labels: Tensor,
    confidence_logits: Tensor,
    exact_match: bool = False,
) -> Expected:
    """Everything in float64 from the definitions, with autograd to whatever asks for it."""
    rows = len(draft)
    q = probabilities(draft, draft_temperature.expand(rows))
    p = probabilities(target, target_temperature.expand(rows))
    distance = (q - p).abs().sum(-1)
    label = (q * p).sum(-1) if exact_match else torch.minimum(q, p).sum(-1)
    warm = torch.where(draft_temperature > 0, draft_temperature, 1.0).double().expand(rows)
    every = torch.log_softmax(draft.double() / warm[:, None], dim=-1)
    picked = every.gather(-1, labels.clamp(min=0)[:, None]).squeeze(-1)
    error = torch.nn.functional.binary_cross_entropy_with_logits(
        confidence_logits.double(), label.detach(), reduction="none"
    )
    return Expected(label, distance, torch.where(labels >= 0, picked, 0.0), error)
