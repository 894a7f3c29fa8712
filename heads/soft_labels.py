"""Exact acceptance labels where the scores are: kernels on a GPU, ``calib.soft_labels`` elsewhere.

>>> import torch
>>> q, p = torch.tensor([[0.6, 0.4]]).log(), torch.tensor([[0.3, 0.7]]).log()
>>> label = soft_labels(q, p, rule="rejection", draft_mode="sampled")
>>> round(label.item(), 6)
0.7
>>> print(decide_labels(q, p, rule="rejection", draft_mode="sampled"))
reference: the tensors are on the CPU
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from calib import soft_labels as reference
from calib.errors import DistributionError
from calib.soft_labels import AcceptanceRule, DraftMode, LabelOptions, ScoreKind
from heads.kernel_dispatch import Decision, Implementation, decide

_NO_CUT = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def soft_labels(
    draft: Tensor,  # [..., V_draft]
    target: Tensor,  # [..., V]
    *,
    drafted: Tensor | None = None,  # [..., G] long, target ids
    **options: Unpack[LabelOptions],
) -> Tensor:
    """Conditional acceptance probability c*_k of each row; [...] in [0, 1].

    Arguments, options and errors are those of :func:`calib.soft_labels.soft_labels`, which computes
    whatever kernels do not.
    """
    if not decide_labels(draft, target, **options).uses_kernels:
        return reference.soft_labels(draft, target, drafted=drafted, **options)
    from heads.kernels.custom_ops import soft_label_terms

    label = soft_label_terms(
        draft.detach(),
        target,
        rule=options["rule"],
        draft_mode=options["draft_mode"],
        temperature=options.get("temperature", 1.0),
    ).label
    wrong = label.isnan()
    if bool(wrong.any()):
        row = tuple(wrong.nonzero()[0].tolist())
        remedy = "give rows without NaN or +inf and with one finite logit, draft and target"
        raise DistributionError(f"row {list(row)}", float("nan"), remedy)
    return label


def decide_labels(
    draft: Tensor,  # [..., V_draft]
    target: Tensor,  # [..., V]
    **options: Unpack[LabelOptions],
) -> Decision:
    """Which implementation would compute these labels, and why."""
    obstacle = _obstacle(draft, target, **options)
    if obstacle is not None:
        return Decision("soft_label", Implementation.REFERENCE, obstacle)
    return decide("soft_label", (draft, target))


def _obstacle(draft: Tensor, target: Tensor, **options: Unpack[LabelOptions]) -> str | None:
    if options["rule"] == AcceptanceRule.BLOCK and options["draft_mode"] == DraftMode.SAMPLED:
        return "block verification depends on the drafted tokens"
    if options["rule"] not in list(AcceptanceRule) or options["draft_mode"] not in list(DraftMode):
        return "the reference names the words there are"
    for name, off in _NO_CUT.items():
        if options.get(name, off) != off:
            return f"kernels do not cut by {name}"
    for name in ("draft_kind", "target_kind"):
        if options.get(name, ScoreKind.LOGITS) != ScoreKind.LOGITS:
            return "kernels take logits"
    if options.get("draft_to_target") is not None or draft.shape != target.shape:
        return "draft and target have different tokens"
    if not (draft.is_floating_point() and target.is_floating_point()) or draft.numel() == 0:
        return "there are no rows of floats"
    temperature = options.get("temperature", 1.0)
    if not 0.0 <= temperature < torch.inf:
        return "the reference refuses this temperature"
    return None
