"""Acceptance rules and the formula each gives for P(position k accepted | all before it were).

Letters: R rows, V vocabulary, q draft, p target, both as sampling used them (paper §3.2.1 Eq 8
and design notes on label kinds).

    rule         draft mode   conditional label c*_k
    rejection    sampled      m / (m + TV),  m = Σ_v min(q, p),  TV = ½ Σ_v |q − p|
    rejection    greedy       p(argmax q)
    exact_match  sampled      Σ_v q·p        (target sampled alone, compared with the draft)
    exact_match  greedy       p(argmax q)
    greedy       sampled      q(argmax p)
    greedy       greedy       1 where argmax q = argmax p, else 0
    block        sampled      Σ_v min(q_k / P_{k−1}, p_k),  P_k = min(1, P_{k−1}·p_k(x_k)/q_k(x_k))
    block        greedy       p(argmax q)    (the formula above with a one-point q)

m + TV is 1 for two distributions; dividing by it makes equal rows exactly 1 and disjoint rows
exactly 0 in floating point. Equal logits resolve to the lowest token id.

Block verification (Sun et al., arXiv 2403.10444) keeps the running ratio P_k and accepts a
prefix of length τ with P(τ ≥ k | x_1..x_k) = P_k. Averaging over x_k ~ q_k:

    P(τ ≥ k | x_<k) = Σ_v q_k(v)·min(1, P_{k−1} p_k(v)/q_k(v)) = Σ_v min(q_k(v), P_{k−1} p_k(v))

and the conditional label is that over P_{k−1}, NaN where the prefix cannot survive
(P_{k−1} = 0). No single token is tested: whether k − 1 survives depends on x_k too, so
P_k / P_{k−1} may exceed 1 and α_k has no meaning under this rule.
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError
from calib.soft_label_processing import ProcessedDistribution


class AcceptanceRule(StrEnum):
    """How the target decides about a drafted token (telemetry column ``acceptance_rule``)."""

    REJECTION = "rejection"
    GREEDY = "greedy"
    EXACT_MATCH = "exact_match"
    BLOCK = "block"


class DraftMode(StrEnum):
    """How the drafter picks a token (telemetry column ``draft_mode``)."""

    SAMPLED = "sampled"
    GREEDY = "greedy"


class DraftVocabulary:
    """Draft ids inside the target's vocabulary.

    Args:
        draft_to_target: [V_draft] long, the target id of each draft id; None where both sides
            share one vocabulary.
        draft: number of draft ids.
        target: number of target ids.
        device: where the id tables live.

    Raises:
        DistributionError: a mapping of the wrong length, with a repeated id or one outside the
            target vocabulary; no mapping although the sizes differ.
    """

    def __init__(
        self, draft_to_target: Tensor | None, draft: int, target: int, device: torch.device
    ) -> None:
        self.to_target: Tensor | None = None
        self.outside: Tensor | None = None
        self._from_target: Tensor | None = None
        if draft_to_target is None:
            if draft != target:
                remedy = f"give draft_to_target, or {target} draft scores as the target has"
                raise DistributionError("draft vocabulary", draft, remedy)
            return
        mapping = draft_to_target.to(device=device, dtype=torch.long)
        self._check(mapping, draft, target)
        self.to_target = mapping
        self._from_target = torch.full((target,), -1, dtype=torch.long, device=device)
        self._from_target[mapping] = torch.arange(draft, device=device)
        # Target ids that no draft token stands for: their mass is never accepted.
        self.outside = (self._from_target < 0).nonzero().squeeze(-1)

    @staticmethod
    def _check(mapping: Tensor, draft: int, target: int) -> None:
        if mapping.shape != (draft,):
            raise DistributionError(
                "draft_to_target", tuple(mapping.shape), f"give one target id per draft id: {draft}"
            )
        if int(mapping.min()) < 0 or int(mapping.max()) >= target:
            wrong = mapping[(mapping < 0) | (mapping >= target)][0]
            raise DistributionError("draft_to_target", int(wrong), f"give ids in [0, {target})")
        if mapping.unique().numel() != draft:
            raise DistributionError("draft_to_target", "a repeated target id", "map each id once")

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids; same shape."""
        return draft_ids if self.to_target is None else self.to_target[draft_ids]

    def draft_ids(self, target_ids: Tensor) -> Tensor:
        """Draft ids of target ids, −1 where the draft cannot say the token; same shape."""
        return target_ids if self._from_target is None else self._from_target[target_ids]

    def target_tokens(self, tokens: slice) -> slice | Tensor:
        """Target tokens that a range of draft ids stands for."""
        return tokens if self.to_target is None else self.to_target[tokens]


def overlap(
    draft: ProcessedDistribution,
    target: ProcessedDistribution,
    vocabulary: DraftVocabulary,
    survival: Tensor | None = None,  # [R] in (0, 1]: P_{k−1} of block verification
) -> Tensor:
    """Accepted share of the two distributions; [R] float64 in [0, 1].

    Without ``survival`` it is m / (m + TV). With it, w = P_{k−1}, it is S / (S + E) with
    S = Σ min(q, w·p) and E = Σ max(w·p − q, 0), whose sum is w: the block-verification label.
    """
    shared = torch.zeros(draft.rows, dtype=torch.float64, device=draft.device)
    apart = torch.zeros_like(shared)
    for rows, tokens in draft.tiles():
        q = draft.probabilities(rows, tokens)
        p = target.probabilities(rows, vocabulary.target_tokens(tokens))
        if survival is not None:
            p.mul_(survival[rows, None].to(p.dtype))
        shared[rows] += torch.minimum(q, p).sum(-1)
        difference = p.sub_(q)
        if survival is None:
            apart[rows] += difference.abs_().sum(-1) * 0.5
        else:
            apart[rows] += difference.clamp_(min=0.0).sum(-1)
    outside = _mass_outside(target, vocabulary)
    if outside is not None:
        apart += outside * (0.5 if survival is None else survival)
    return shared / (shared + apart)


def _mass_outside(target: ProcessedDistribution, vocabulary: DraftVocabulary) -> Tensor | None:
    if vocabulary.outside is None or vocabulary.outside.numel() == 0:
        return None
    mass = torch.zeros(target.rows, dtype=torch.float64, device=target.device)
    for rows in target.row_blocks():
        for ids in vocabulary.outside.split(target.chunk):
            mass[rows] += target.probabilities(rows, ids).sum(-1)
    return mass


def match_probability(
    draft: ProcessedDistribution,
    target: ProcessedDistribution,
    vocabulary: DraftVocabulary,
) -> Tensor:
    """Σ_v q·p, the chance that two independent samples agree; [R] float64."""
    total = torch.zeros(draft.rows, dtype=torch.float64, device=draft.device)
    for rows, tokens in draft.tiles():
        q = draft.probabilities(rows, tokens)
        total[rows] += q.mul_(target.probabilities(rows, vocabulary.target_tokens(tokens))).sum(-1)
    return total


def block_survival(
    ratio: Tensor,  # [..., G] p_k(x_k) / q_k(x_k) of the drafted tokens
) -> Tensor:
    """P_k of block verification, P(prefix of length k survives | x_1..x_k); [..., G]."""
    survivals = []
    running = torch.ones_like(ratio[..., 0])
    for k in range(ratio.shape[-1]):
        running = (running * ratio[..., k]).clamp(max=1.0)
        survivals.append(running)
    return torch.stack(survivals, dim=-1)


def before_each(
    survival: Tensor,  # [..., G] some P_k, k = 1..G
) -> Tensor:
    """P_{k−1} for each k, with P_0 = 1; [..., G]."""
    return torch.cat([torch.ones_like(survival[..., :1]), survival[..., :-1]], dim=-1)


def soft_survival(
    conditional: Tensor,  # [..., G] c*_k
    token_acceptance: Tensor,  # [..., G] α_k of the drafted tokens
) -> Tensor:
    """P(n ≥ k | x_<k) = ∏_{i<k} α_i(x_i) · c*_k of one drafted block; [..., G] in [0, 1].

    This is the label of survival along the path that was drafted, for every rule but block
    verification (there: P_{k−1} · c*_k). It may rise along the block (x_k was luckier than the
    average over x_k), and it is not ∏ c*: the tokens before k are known. Once an α is 0 every
    later position is 0, whatever is unknown there.

    Raises:
        ConfigurationError: shapes that differ.
    """
    if conditional.shape != token_acceptance.shape:
        raise ConfigurationError(
            "token_acceptance",
            tuple(token_acceptance.shape),
            f"give the shape of the conditional labels, {tuple(conditional.shape)}",
        )
    # 0 · NaN would turn a certain rejection into an unknown.
    dead = (token_acceptance == 0.0).cummax(dim=-1).values
    reached = before_each(token_acceptance.masked_fill(dead, 0.0).cumprod(dim=-1))
    return torch.where(reached == 0.0, reached, reached * conditional)
