"""The draft block in eager torch: the twin of :mod:`heads.kernels.draft_block`.

Same signature, same buffers, same random stream, same order of ties. Sums of products are taken
in another order, so that tokens can differ where the two best scores are equal but for rounding.

Letters: B rows, γ positions, V' draft vocabulary, r rank, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heads.draft_block import (
    DraftBlockInputs,
    DraftBlockOutput,
    DraftBlockWorkspace,
    check_block,
)
from heads.draft_block_weights import DraftBlockWeights
from heads.reference.counter_based_random import gumbel_noise
from heads.reference.deterministic_argmax import LEAST_WORD, best_words, decoded_ids


def draft_block(
    weights: DraftBlockWeights,
    inputs: DraftBlockInputs,
    workspace: DraftBlockWorkspace,
) -> DraftBlockOutput:
    """Draft one block a row; views of the workspace.

    Raises:
        ConfigurationError: parts that do not belong together.
    """
    block = ReferenceDraftBlock(weights, inputs, workspace)
    block.prepare()
    for index in range(inputs.gamma):
        block.position(index)
    return workspace.output(inputs.rows)


class ReferenceDraftBlock:
    """A block under way; see :class:`heads.draft_block.DraftBlock`.

    Args:
        weights: of the heads.
        inputs: of the step.
        workspace: scratch and results.

    Raises:
        ConfigurationError: parts that do not belong together.
    """

    def __init__(
        self,
        weights: DraftBlockWeights,
        inputs: DraftBlockInputs,
        workspace: DraftBlockWorkspace,
    ) -> None:
        check_block(weights, inputs, workspace)
        self.weights, self.inputs, self.workspace = weights, inputs, workspace
        self._results = workspace.output(inputs.rows)
        self._w2 = weights.w2.to(weights.operand).float()

    def prepare(self) -> None:
        """Reset the scratch and compute what depends on no token."""
        rows, weights = self.inputs.rows, self.weights
        self.workspace.words[:, :rows] = LEAST_WORD
        hidden = self.inputs.hidden.float()
        if weights.confidence_hidden is not None and weights.confidence_bias is not None:
            base = hidden @ weights.confidence_hidden + weights.confidence_bias
            self.workspace.confidence_base[:rows] = base
        if weights.state_hidden is not None and weights.state_bias is not None:
            operand = self.inputs.hidden.to(weights.state_hidden.dtype).float()
            projected = operand @ weights.state_hidden.float().T + weights.state_bias.float()
            self.workspace.projected[:rows] = projected
        self.workspace.states[:, :rows] = 0.0

    def position(self, index: int) -> None:
        """Draft position ``index`` + 1."""
        inputs, words = self.inputs, self.workspace.words[:, : self.inputs.rows]
        previous = self._previous(index)
        code = self.weights.w1[previous]
        self._confidence(index, code)
        logits = inputs.base_logits[:, index].float() + self._bias(index, code)
        if self._results.logits is not None:
            self._results.logits[:, index] = logits
            logits = self._results.logits[:, index].float()  # tokens come from what is kept
        if self._results.log_sum_exp is not None:
            warm = torch.where(inputs.temperatures > 0, inputs.temperatures, 1.0)
            self._results.log_sum_exp[:, index] = (logits / warm[:, None]).logsumexp(dim=1)
        first = self.weights.vocabulary_offset
        if inputs.sampled:
            noise = gumbel_noise(
                inputs.request_keys, inputs.positions, index + 1, first, logits.shape[1]
            )
            logits = logits + inputs.temperatures[:, None] * noise
        words[index] = best_words(logits, first)
        self._write_tokens(index)

    def _previous(self, index: int) -> Tensor:
        """Target ids x_{k−1}; [B] long. Words may have been merged since they were written."""
        if index == 0:
            return self.inputs.anchors.clamp(0, len(self.weights.w1) - 1)
        return self._write_tokens(index - 1)

    def _write_tokens(self, index: int) -> Tensor:
        ids = decoded_ids(self.workspace.words[index, : self.inputs.rows])
        mapping = self.weights.draft_to_target
        tokens = ids if mapping is None else mapping[ids]
        self._results.draft_ids[:, index], self._results.tokens[:, index] = ids, tokens
        return tokens

    def _confidence(self, index: int, code: Tensor) -> None:
        results, inputs = self._results, self.inputs
        if (
            results.confidence_logits is None
            or results.confidences is None
            or results.survival is None
        ):
            return
        logit = self.workspace.confidence_base[: inputs.rows, index]
        if self.weights.confidence_code is not None:
            logit = logit + code.float() @ self.weights.confidence_code
        confidence = torch.sigmoid(
            inputs.slopes[..., index] * logit + inputs.intercepts[..., index]
        )
        results.confidence_logits[:, index] = logit
        results.confidences[:, index] = confidence
        before = 1.0 if index == 0 else results.survival[:, index - 1]
        results.survival[:, index] = before * confidence

    def _bias(
        self,
        index: int,
        code: Tensor,  # [B, r] of w1's type
    ) -> Tensor:
        """e_k · W2ᵀ; [B, V'] float32."""
        latent = code.float()
        if self.weights.state_code is not None:
            latent = self._latent(index, code.to(self.weights.state_code.dtype).float())
        bias = latent.to(self.weights.operand).float() @ self._w2.T
        scales = self.weights.w2_scales
        return bias if scales is None else bias * scales

    def _latent(self, index: int, code: Tensor) -> Tensor:
        """What meets W2 in place of the code: σ(gate) ⊙ code, or tanh(output); [B, r]."""
        weights, rows = self.weights, self.inputs.rows
        if weights.state_code is None:
            return code
        joint = self.workspace.projected[:rows, index] + code @ weights.state_code.float().T
        if weights.state_recurrent is None:
            return torch.sigmoid(joint) * code
        state = self.workspace.states[index % 2, :rows]
        operand = state.to(weights.state_recurrent.dtype).float()
        joint = joint + operand @ weights.state_recurrent.float().T
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        new = gate * state + (1.0 - gate) * torch.tanh(candidate)
        self.workspace.states[(index + 1) % 2, :rows] = new
        return torch.tanh(output)
