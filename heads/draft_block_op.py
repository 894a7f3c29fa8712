"""The draft block as torch sees it: one custom op that compiles and dispatches.

``dspark_calib::draft_block`` is opaque to ``torch.compile`` and writes into the workspace it is
given, so a step that drafts compiles with ``fullgraph=True`` and is captured into a CUDA graph as
its launches. When it runs, :mod:`heads.kernel_dispatch` chooses kernels or eager torch by the
tensors; Triton is imported only when kernels run. It has no gradient: drafting is not trained.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from heads import kernel_dispatch
from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlockInputs, DraftBlockOutput, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.reference import draft_block as reference

_WRITTEN = (
    "words",
    "arrivals",
    "projected",
    "states",
    "latents",
    "confidence_base",
    "partials",
    "tokens",
    "draft_ids",
    "confidence_logits",
    "confidences",
    "survival",
    "logits",
    "log_sum_exp",
)


@torch.library.custom_op("dspark_calib::draft_block", mutates_args=_WRITTEN)
def draft_block_op(
    head: str,
    w1: Tensor,
    w2: Tensor,
    w2_scales: Tensor | None,
    state_hidden: Tensor | None,
    state_code: Tensor | None,
    state_recurrent: Tensor | None,
    state_bias: Tensor | None,
    confidence_hidden: Tensor | None,
    confidence_code: Tensor | None,
    confidence_bias: Tensor | None,
    draft_to_target: Tensor | None,
    vocabulary_offset: int,
    anchors: Tensor,
    hidden: Tensor,
    base_logits: Tensor,
    temperatures: Tensor,
    request_keys: Tensor,
    positions: Tensor,
    slopes: Tensor,
    intercepts: Tensor,
    sampled: bool,
    words: Tensor,
    arrivals: Tensor,
    projected: Tensor,
    states: Tensor,
    latents: Tensor,
    confidence_base: Tensor,
    partials: Tensor | None,
    tokens: Tensor,
    draft_ids: Tensor,
    confidence_logits: Tensor | None,
    confidences: Tensor | None,
    survival: Tensor | None,
    logits: Tensor | None,
    log_sum_exp: Tensor | None,
) -> None:
    """The fields of weights, inputs and workspace, one by one; see their classes."""
    weights = DraftBlockWeights(
        cast(MarkovHeadType, head),
        w1,
        w2,
        w2_scales,
        state_hidden,
        state_code,
        state_recurrent,
        state_bias,
        confidence_hidden,
        confidence_code,
        confidence_bias,
        draft_to_target,
        vocabulary_offset,
    )
    inputs = DraftBlockInputs(
        anchors,
        hidden,
        base_logits,
        temperatures,
        request_keys,
        positions,
        slopes,
        intercepts,
        sampled,
    )
    results = DraftBlockOutput(
        tokens, draft_ids, confidence_logits, confidences, survival, logits, log_sum_exp
    )
    workspace = DraftBlockWorkspace(
        words, arrivals, projected, states, latents, confidence_base, partials, results
    )
    streamed = [hidden, base_logits, w1, w2]
    if kernel_dispatch.decide("draft_block", streamed).uses_kernels:
        from heads.kernels import draft_block as kernels

        kernels.draft_block(weights, inputs, workspace)
    else:
        reference.draft_block(weights, inputs, workspace)


@draft_block_op.register_fake
def _draft_block_fake(*arguments: object) -> None:
    """Results lie in the workspace: there is nothing to describe."""


def draft_block(
    weights: DraftBlockWeights,
    inputs: DraftBlockInputs,
    workspace: DraftBlockWorkspace,
) -> DraftBlockOutput:
    """Draft one block a row with kernels where they run, else in eager torch.

    Returns:
        Views of the workspace.

    Raises:
        ConfigurationError: parts that do not belong together.
    """
    results = workspace.results
    draft_block_op(
        weights.head,
        weights.w1,
        weights.w2,
        weights.w2_scales,
        weights.state_hidden,
        weights.state_code,
        weights.state_recurrent,
        weights.state_bias,
        weights.confidence_hidden,
        weights.confidence_code,
        weights.confidence_bias,
        weights.draft_to_target,
        weights.vocabulary_offset,
        inputs.anchors,
        inputs.hidden,
        inputs.base_logits,
        inputs.temperatures,
        inputs.request_keys,
        inputs.positions,
        inputs.slopes,
        inputs.intercepts,
        inputs.sampled,
        workspace.words,
        workspace.arrivals,
        workspace.projected,
        workspace.states,
        workspace.latents,
        workspace.confidence_base,
        workspace.partials,
        results.tokens,
        results.draft_ids,
        results.confidence_logits,
        results.confidences,
        results.survival,
        results.logits,
        results.log_sum_exp,
    )
    return workspace.output(inputs.rows)
