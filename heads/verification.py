"""Lossless verification of drafted blocks.

Rejection sampling (Leviathan et al. 2023, Chen et al. 2023): position k is accepted when
u_k < min(1, p_k(x_k) / q_k(x_k)); the first rejected position is drawn anew from the normalised
residual max(p − q, 0), and when all ℓ verified positions stand, one bonus token comes from the
target's next distribution. Greedy requests are the same rule on one-hot distributions: accepted
means equal to the target's best token. Trimming to ℓ < γ keeps the output distribution as long
as ℓ does not depend on the tokens it cuts or on later ones (DSpark paper, §3.2.2, Appendix A).

Letters: R requests, γ positions, V target vocabulary, V' draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calib.errors import DistributionError
from heads.sampling import draw


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided.

    Attributes:
        accepted: [R] long, n, accepted draft positions, 0 … ℓ.
        next_token: [R] long, the replacement of the first rejected token, or the bonus token.
        token_acceptance: [R, γ] float32, min(1, p/q)(x_k) of each drafted token, also past ℓ.
    """

    accepted: Tensor
    next_token: Tensor
    token_acceptance: Tensor


def verify_block(
    draft_ids: Tensor,  # [R, γ] long, in the draft vocabulary
    draft_probabilities: Tensor,  # [R, γ, V'] what each token was drawn from
    target_probabilities: Tensor,  # [R, γ + 1, V] processed as sampling really does
    draft_to_target: Tensor,  # [V'] long
    verified: Tensor,  # [R] long, ℓ
    accept_uniforms: Tensor,  # [R, γ] in [0, 1)
    draw_uniforms: Tensor,  # [R] in [0, 1)
) -> Verdict:
    """Accept, reject and draw the next token of every request.

    Uniforms should be float64: rounded to float32 one of them may be 1 and reject a certainty.

    Raises:
        DistributionError: shapes that do not belong together, lengths outside 0 … γ, or a drafted
            token that the drafter gives no mass.
    """
    _check_shapes(draft_ids, draft_probabilities, target_probabilities, draft_to_target)
    _check_lengths(draft_ids, verified, accept_uniforms, draw_uniforms)
    gamma = draft_ids.shape[1]
    tokens = draft_to_target[draft_ids]
    drafted = draft_probabilities.gather(-1, draft_ids[..., None]).squeeze(-1)
    if not bool((drafted > 0).all()):
        raise DistributionError(
            "draft_probabilities",
            float(drafted.min()),
            "every drafted token must have been drawn from these very probabilities",
        )
    wanted = target_probabilities[:, :gamma].gather(-1, tokens[..., None]).squeeze(-1)
    ratio = (wanted / drafted).clamp(max=1.0)
    inside = torch.arange(gamma, device=verified.device) < verified[:, None]
    stands = (accept_uniforms < ratio) & inside
    accepted = stands.int().cumprod(dim=-1).sum(dim=-1).long()
    weights = _next_weights(
        draft_probabilities, target_probabilities, draft_to_target, verified, accepted
    )
    return Verdict(accepted, draw(weights, draw_uniforms), ratio)


def _next_weights(
    draft_probabilities: Tensor,
    target_probabilities: Tensor,
    draft_to_target: Tensor,
    verified: Tensor,
    accepted: Tensor,
) -> Tensor:
    """Weights of the next token: the residual after a rejection, else the target; [R, V]."""
    row = torch.arange(len(accepted), device=accepted.device)
    weights = target_probabilities[row, accepted].clone()
    rejected = (accepted < verified).nonzero().squeeze(-1)
    if len(rejected) == 0:
        return weights
    residual = weights[rejected]
    residual.index_add_(1, draft_to_target, -draft_probabilities[rejected, accepted[rejected]])
    residual.clamp_(min=0.0)
    # Rounding can leave p nowhere above q and a token rejected all the same: p is then as good.
    some = residual.sum(dim=-1) > 0.0
    weights[rejected[some]] = residual[some]
    return weights


def _check_shapes(
    draft_ids: Tensor,
    draft_probabilities: Tensor,
    target_probabilities: Tensor,
    draft_to_target: Tensor,
) -> None:
    rows, gamma = draft_ids.shape
    vocabulary = len(draft_to_target)
    if tuple(draft_probabilities.shape) != (rows, gamma, vocabulary):
        raise DistributionError(
            "draft_probabilities",
            tuple(draft_probabilities.shape),
            f"give {[rows, gamma, vocabulary]}: one distribution a drafted token",
        )
    if target_probabilities.shape[:2] != (rows, gamma + 1):
        raise DistributionError(
            "target_probabilities",
            tuple(target_probabilities.shape),
            f"give [{rows}, {gamma + 1}, V]: one more position than drafted, for the bonus",
        )


def _check_lengths(
    draft_ids: Tensor, verified: Tensor, accept_uniforms: Tensor, draw_uniforms: Tensor
) -> None:
    rows, gamma = draft_ids.shape
    for name, tensor, shape in (
        ("verified", verified, (rows,)),
        ("accept_uniforms", accept_uniforms, (rows, gamma)),
        ("draw_uniforms", draw_uniforms, (rows,)),
    ):
        if tuple(tensor.shape) != shape:
            raise DistributionError(name, tuple(tensor.shape), f"give {list(shape)}")
    if bool(((verified < 0) | (verified > gamma)).any()):
        raise DistributionError("verified", verified.tolist(), f"give lengths from 0 to {gamma}")
