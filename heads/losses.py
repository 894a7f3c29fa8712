"""The three training losses of a drafter (DSpark paper, §3.3, Eqs. 9–12).

L = 0.1 · L_CE + 0.9 · L_1 + 1.0 · L_conf, each a mean over valid positions with weights
w_k = exp(−(k − 1)/γ). L_1 is the un-halved ‖p_draft − p_target‖₁; the confidence label
c* = 1 − ½‖p_draft − p_target‖₁ is detached, so the confidence loss moves no distribution.

Letters: P positions in any leading shape, V' draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError, DistributionError

_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Weights of the three losses and their decay along the block; each weight 0 or more.

    Attributes:
        cross_entropy: of the token that follows.
        l1: of the un-halved L1 distance.
        confidence: of the confidence head's binary cross-entropy.
        decay: length of the decay; None is γ, as in the paper; DeepSpec's code has 4.0.
    """

    cross_entropy: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    decay: float | None = None

    def __post_init__(self) -> None:
        for field in ("cross_entropy", "l1", "confidence"):
            if not 0.0 <= getattr(self, field) < float("inf"):
                raise ConfigurationError(field, getattr(self, field), "give 0 or more")
        if self.decay is not None and not self.decay > 0:
            raise ConfigurationError("decay", self.decay, "give a length above 0, or none for γ")

    def position_weights(self, gamma: int, device: torch.device | None = None) -> Tensor:
        """[γ] w_k = exp(−(k − 1)/decay)."""
        steps = torch.arange(gamma, dtype=torch.float32, device=device)
        return torch.exp(-steps / (self.decay or gamma))


@dataclass(frozen=True, slots=True)
class DrafterLoss:
    """Total and parts, scalars, with the exact labels per position.

    Attributes:
        soft_labels: [..., γ] detached c*; meaningful where the mask is True.
    """

    total: Tensor
    cross_entropy: Tensor
    l1: Tensor
    confidence: Tensor
    soft_labels: Tensor


def drafter_loss(
    draft_logits: Tensor,  # [..., γ, V']
    confidence_logits: Tensor | None,  # [..., γ]
    target_probabilities: Tensor,  # [..., γ, V'], target mass on the draft vocabulary
    labels: Tensor,  # [..., γ] long, draft id of the token that follows, −1 outside the vocabulary
    mask: Tensor,  # [..., γ] bool, positions that count
    weights: LossWeights,
) -> DrafterLoss:
    """The weighted sum of the three losses.

    Target mass outside the draft vocabulary adds to the distance: the drafter can never propose
    those tokens, so they are never accepted. Positions outside the mask count nothing, whatever
    their numbers.

    Raises:
        DistributionError: shapes that do not belong together.
    """
    _check_shapes(draft_logits, target_probabilities, labels, mask)
    wide = torch.promote_types(draft_logits.dtype, torch.float32)
    log_draft = torch.log_softmax(draft_logits.to(wide), dim=-1)
    draft = log_draft.exp()
    outside = (1.0 - target_probabilities.sum(dim=-1)).clamp(min=0.0)
    distance = (draft - target_probabilities).abs().sum(dim=-1) + outside
    # Not left to the weights: 0 · inf would be NaN.
    distance = torch.where(mask, distance, 2.0)
    soft_labels = (1.0 - 0.5 * distance).clamp(0.0, 1.0).detach()
    position = weights.position_weights(mask.shape[-1], mask.device).expand(mask.shape) * mask
    known = position * (labels >= 0)
    picked = log_draft.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    cross_entropy = -(known * picked).sum() / (known.sum() + _EPSILON)
    l1 = (position * distance).sum() / (position.sum() + _EPSILON)
    confidence = draft_logits.new_zeros(())
    if confidence_logits is not None:
        errors = nn.functional.binary_cross_entropy_with_logits(
            confidence_logits.to(wide), soft_labels, reduction="none"
        )
        confidence = (position * errors).sum() / (position.sum() + _EPSILON)
    total = (
        weights.cross_entropy * cross_entropy + weights.l1 * l1 + weights.confidence * confidence
    )
    return DrafterLoss(total, cross_entropy, l1, confidence, soft_labels)


def _check_shapes(
    draft_logits: Tensor, target_probabilities: Tensor, labels: Tensor, mask: Tensor
) -> None:
    expected = {
        "target_probabilities": (target_probabilities, draft_logits.shape),
        "labels": (labels, draft_logits.shape[:-1]),
        "mask": (mask, draft_logits.shape[:-1]),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise DistributionError(
                name, tuple(tensor.shape), f"give {tuple(shape)}, as the draft logits have"
            )
