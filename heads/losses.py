"""The three training losses of a drafter (DSpark paper, §3.3, Eqs. 9–12).

L = 0.1 · L_CE + 0.9 · L_1 + 1.0 · L_conf, each a mean over valid positions with weights
w_k = exp(−(k − 1)/γ). L_1 is the un-halved ‖p_draft − p_target‖₁; the confidence label
c* = 1 − ½‖p_draft − p_target‖₁ is detached, so the confidence loss moves no distribution.

Letters: P positions in any leading shape, V' draft vocabulary.

:func:`drafter_loss` takes the target's probabilities; :func:`drafter_loss_from_logits` takes its
logits, and on a GPU computes everything that is as long as the vocabulary in one kernel forward
and one backward.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError, DistributionError
from heads.kernel_dispatch import decide

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
    picked = log_draft.gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    errors = None
    if confidence_logits is not None:
        errors = nn.functional.binary_cross_entropy_with_logits(
            confidence_logits.to(wide), soft_labels, reduction="none"
        )
    return _weighted(distance, picked, errors, soft_labels, labels, mask, weights)


def drafter_loss_from_logits(
    draft_logits: Tensor,  # [..., γ, V']
    confidence_logits: Tensor | None,  # [..., γ]
    target_logits: Tensor,  # [..., γ, V'], of the draft vocabulary
    target_log_normalizer: Tensor,  # [..., γ] log Σ exp over the target's whole vocabulary
    labels: Tensor,  # [..., γ] long, draft id of the token that follows, −1 outside the vocabulary
    mask: Tensor,  # [..., γ] bool, positions that count
    weights: LossWeights,
) -> DrafterLoss:
    """:func:`drafter_loss` of a target that is given by its logits, by kernels where they can run.

    Without kernels it is :func:`drafter_loss` itself, to the last bit.

    Raises:
        DistributionError: shapes that do not belong together.
    """
    _check_shapes(draft_logits, target_logits, labels, mask)
    if target_log_normalizer.shape != mask.shape:
        shape, remedy = tuple(target_log_normalizer.shape), f"give {tuple(mask.shape)}"
        raise DistributionError("target_log_normalizer", shape, remedy)
    if not decide("soft_label", (draft_logits, target_logits)).uses_kernels:
        with torch.no_grad():
            probabilities = (target_logits - target_log_normalizer[..., None]).exp_()
        return drafter_loss(draft_logits, confidence_logits, probabilities, labels, mask, weights)
    from heads.kernels.custom_ops import soft_label_terms

    terms = soft_label_terms(
        draft_logits,
        target_logits,
        target_log_sum_exp=target_log_normalizer,
        labels=labels,
        confidence_logits=confidence_logits,
        outside=True,
    )
    # Rows that do not count may hold anything, and 0 · NaN would be NaN.
    return _weighted(
        torch.where(mask, terms.distance, 2.0),
        torch.where(mask, terms.log_probability, 0.0),
        None if confidence_logits is None else torch.where(mask, terms.confidence_error, 0.0),
        torch.where(mask, terms.label.detach(), 0.0),
        labels,
        mask,
        weights,
    )


def _weighted(
    distance: Tensor,  # [..., γ]
    log_probability: Tensor,  # [..., γ] of the labels, anything where there is none
    errors: Tensor | None,  # [..., γ] of the confidence head
    soft_labels: Tensor,  # [..., γ]
    labels: Tensor,
    mask: Tensor,
    weights: LossWeights,
) -> DrafterLoss:
    """Means over valid positions with their weights, and the sum of the three."""
    position = weights.position_weights(mask.shape[-1], mask.device).expand(mask.shape) * mask
    known = position * (labels >= 0)
    cross_entropy = -(known * log_probability).sum() / (known.sum() + _EPSILON)
    l1 = (position * distance).sum() / (position.sum() + _EPSILON)
    confidence = distance.new_zeros(())
    if errors is not None:
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
