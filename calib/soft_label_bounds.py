"""Bounds on the soft label where only some probabilities of each side are known.

Engines return the k largest probabilities of a position, not all V. The mass that is not listed
may overlap with anything, so the label of ``rejection`` with sampled drafts is known to an
interval only. Renormalising the listed values instead would state a number nobody knows.

With L = listed by both, A = listed by the draft only, B = listed by the target only, and
u_q, u_p the unlisted masses (1 − Σ listed):

    lower = Σ_L min(q, p)
    upper = lower + a + b + min(u_p − a, u_q − b)
    a = min(u_p, Σ_A min(q, cap_p))     the target's unlisted mass put under A
    b = min(u_q, Σ_B min(p, cap_q))     the draft's unlisted mass put under B

cap is the largest probability an unlisted token can have: the smallest listed one when the list
holds the largest probabilities, else 1. Both ends are attained by some pair of distributions as
long as the vocabulary has room for the unlisted mass. Nothing here is wrong without that room,
only wider than need be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calib.errors import DistributionError
from calib.labels import LabelKind

_SUM_TOLERANCE = 1e-3
_NEGATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ListedProbabilities:
    """What is known of one side.

    Attributes:
        tokens: [..., K] integer token ids in the target's vocabulary; negative ids are padding.
        probabilities: [..., K] after the processing that sampling used; ignored at padding.
        largest: the list holds the K largest probabilities and nothing else, so no unlisted one
            exceeds its smallest. It tightens the upper end; leave it False when in doubt, for
            instance where the engine appends the sampled token to its list.
    """

    tokens: Tensor
    probabilities: Tensor
    largest: bool = False


@dataclass(frozen=True, slots=True)
class SoftLabelBounds:
    """Interval that contains the soft label.

    Attributes:
        lower: [...] in [0, 1].
        upper: [...] in [0, 1], at least ``lower``.
        kind: ``soft_truncated``; such labels are never mixed with exact ones.
    """

    lower: Tensor
    upper: Tensor
    kind: LabelKind = LabelKind.SOFT_TRUNCATED


def soft_label_bounds(draft: ListedProbabilities, target: ListedProbabilities) -> SoftLabelBounds:
    """Smallest and largest Σ_v min(q, p) that agrees with the listed probabilities.

    Args:
        draft: listed probabilities of the drafter.
        target: listed probabilities of the target; its own list length is fine.

    Raises:
        DistributionError: lists of different rows, a repeated token, values that are negative,
            not finite or sum to more than 1.

    >>> q = ListedProbabilities(torch.tensor([[0, 1]]), torch.tensor([[0.6, 0.3]]))
    >>> p = ListedProbabilities(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.4]]))
    >>> bounds = soft_label_bounds(q, p)
    >>> round(bounds.lower.item(), 6), round(bounds.upper.item(), 6)
    (0.8, 0.9)
    """
    q, p = _Listed("draft", draft), _Listed("target", target)
    if q.values.shape[:-1] != p.values.shape[:-1]:
        raise DistributionError(
            "draft", tuple(q.values.shape), f"give the rows of the target, {p.values.shape[:-1]}"
        )
    same = (q.tokens[..., :, None] == p.tokens[..., None, :]) & q.valid[..., :, None]
    shared = torch.minimum(q.values[..., :, None], p.values[..., None, :])
    lower = torch.where(same, shared, 0.0).sum((-1, -2))
    under_draft = q.reachable(~same.any(-1), p.cap).minimum(p.unlisted)
    under_target = p.reachable(~same.any(-2), q.cap).minimum(q.unlisted)
    common = torch.minimum(p.unlisted - under_draft, q.unlisted - under_target)
    upper = (lower + under_draft + under_target + common).clamp(max=1.0)
    return SoftLabelBounds(lower.clamp(max=1.0), torch.maximum(lower.clamp(max=1.0), upper))


class _Listed:
    """Checked list of one side in float64."""

    def __init__(self, name: str, listed: ListedProbabilities) -> None:
        tokens, values = listed.tokens, listed.probabilities.detach().double()
        if tokens.shape != values.shape or tokens.dim() < 1 or tokens.is_floating_point():
            raise DistributionError(
                name,
                f"tokens {tuple(tokens.shape)}, probabilities {tuple(values.shape)}",
                "give integer ids and probabilities of one shape [..., K]",
            )
        self.tokens = tokens
        self.valid = tokens >= 0
        values = torch.where(self.valid, values, 0.0)
        total = values.sum(-1)
        _refuse(name, ~(values >= -_NEGATIVE_TOLERANCE), values, "give probabilities of 0 or more")
        _refuse(name, ~(total <= 1.0 + _SUM_TOLERANCE), total, "give a list that sums to <= 1")
        pairs = (tokens[..., :, None] == tokens[..., None, :]) & self.valid[..., :, None]
        _refuse(name, pairs.sum(-1) > 1, tokens, "list each token once")
        self.values = values.clamp(min=0.0)
        self.unlisted = (1.0 - self.values.sum(-1)).clamp(min=0.0)
        smallest = torch.where(self.valid, self.values, 1.0).amin(-1)
        self.cap = smallest if listed.largest else torch.ones_like(smallest)

    def reachable(
        self,
        alone: Tensor,  # [..., K] listed on this side only
        cap: Tensor,  # [...] largest unlisted probability of the other side
    ) -> Tensor:
        """Overlap the other side could reach on tokens listed here only; [...]."""
        bounded = torch.minimum(self.values, cap[..., None])
        return torch.where(alone & self.valid, bounded, 0.0).sum(-1)


def _refuse(name: str, wrong: Tensor, values: Tensor, remedy: str) -> None:
    if bool(wrong.any()):
        raise DistributionError(name, float(values[wrong][0]), remedy)
