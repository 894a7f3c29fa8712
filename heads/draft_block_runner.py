"""Drafting for a decoder with the fused draft block: kernels where they run, else their twin.

A :class:`DraftBlockRunner` stands in for :meth:`heads.drafter.Drafter.propose`. The backbone and
the language-model head are the drafter's own; what follows, token by token, is the draft block.
Tokens are drawn from softmax(logits / T) by noise that is keyed by request, position and step, so
verification stays lossless and a request's tokens do not depend on its company.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads import kernel_dispatch
from heads.backbone import KeysValues
from heads.draft_block import (
    DraftBlock,
    DraftBlockInputs,
    DraftBlockOutput,
    DraftBlockWorkspace,
)
from heads.draft_block_weights import DraftBlockWeights
from heads.drafter import Drafter, Proposal, processed_by_request
from heads.reference.draft_block import ReferenceDraftBlock
from heads.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class ServedCalibration:
    """What an engine applies to raw confidence logits: c_k = σ(s_k z_k + b_k).

    Attributes:
        slopes: [γ] float32, s_k; 1 / T_k for temperatures.
        intercepts: [γ] float32, b_k; zeros for temperatures.
    """

    slopes: Tensor
    intercepts: Tensor

    @classmethod
    def from_temperatures(cls, temperatures: Tensor) -> ServedCalibration:
        """s_k = 1 / T_k and b_k = 0."""
        slopes = 1.0 / temperatures.float()
        return cls(slopes, torch.zeros_like(slopes))


class DraftBlockRunner:
    """Drafts blocks for up to ``rows`` requests at once.

    Args:
        drafter: in evaluation mode, with a Markov head.
        rows: most requests of a step; buffers are allocated for them once.
        calibration: served calibration; None is the identity. Its tensors are read at every
            step, so new numbers are copied into them.
        kernels: True insists on kernels, False on the reference; None asks
            :mod:`heads.kernel_dispatch`.

    Attributes:
        reason: which implementation runs and why, in one line.
        output: of the last block, views that the next one overwrites; None before the first.

    Raises:
        ConfigurationError: a drafter without a Markov head, or kernels that cannot run here.
    """

    def __init__(
        self,
        drafter: Drafter,
        *,
        rows: int,
        calibration: ServedCalibration | None = None,
        kernels: bool | None = None,
    ) -> None:
        if drafter.markov_head is None:
            raise ConfigurationError(
                "drafter",
                "no Markov head",
                "without one positions do not depend on each other: use the drafter itself",
            )
        mapping = None
        if drafter.configuration.draft_vocab_size < drafter.configuration.vocab_size:
            mapping = drafter.draft_to_target
        self._drafter = drafter
        self._weights = DraftBlockWeights.from_heads(
            drafter.markov_head, drafter.confidence_head, mapping
        )
        device = self._weights.w2.device
        self._workspace = DraftBlockWorkspace.allocate(
            self._weights, rows, drafter.gamma, logits=torch.float32
        )
        self._calibration = calibration or ServedCalibration.from_temperatures(
            torch.ones(drafter.gamma, device=device)
        )
        self._uses_kernels, self.reason = self._choose(kernels)
        self.output: DraftBlockOutput | None = None

    def _choose(self, kernels: bool | None) -> tuple[bool, str]:
        streamed = [self._weights.w1, self._weights.w2]
        if kernels is None:
            decision = kernel_dispatch.decide("draft_block", streamed)
            return decision.uses_kernels, str(decision)
        chosen = "triton" if kernels else "reference"
        return kernels, f"{chosen}: asked for"

    def propose(
        self,
        anchors: Tensor,  # [R] long
        positions: Tensor,  # [R] long, position of each anchor in its sequence
        context: list[KeysValues],
        context_mask: Tensor,  # [R, S] bool, True for entries before the anchor
        parameters: list[SamplingParameters],
        request_keys: Tensor,  # [R] long, of heads.draft_block.request_key
    ) -> Proposal:
        """Draft one block a request, left to right.

        Raises:
            ConfigurationError: more rows than there is room for, or a request that cuts tokens
                from its distribution: noise is drawn for the whole vocabulary.
        """
        _refuse_truncation(parameters)
        hidden = self._drafter.block_hidden(anchors, positions, context, context_mask)
        temperatures = [p.temperature for p in parameters]
        inputs = DraftBlockInputs(
            anchors=anchors,
            hidden=hidden,
            base_logits=self._drafter.base_logits(hidden),
            temperatures=torch.tensor(temperatures, dtype=torch.float32, device=hidden.device),
            request_keys=request_keys,
            positions=positions,
            slopes=self._calibration.slopes,
            intercepts=self._calibration.intercepts,
            sampled=any(temperatures),
        )
        block = self._block(inputs)
        block.prepare()
        for index in range(inputs.gamma):
            block.position(index)
        self.output = self._workspace.output(inputs.rows)
        return _proposal(self.output, parameters)

    def _block(self, inputs: DraftBlockInputs) -> DraftBlock:
        if not self._uses_kernels:
            return ReferenceDraftBlock(self._weights, inputs, self._workspace)
        # Triton is imported only where kernels run.
        from heads.kernels.draft_block import FusedDraftBlock

        return FusedDraftBlock(self._weights, inputs, self._workspace)


def _refuse_truncation(parameters: list[SamplingParameters]) -> None:
    for row, own in enumerate(parameters):
        if own.truncates:
            raise ConfigurationError(
                f"parameters[{row}]",
                own,
                "the draft block samples the whole softmax: decode requests with top-k, top-p or "
                "min-p without a runner",
            )


def _proposal(output: DraftBlockOutput, parameters: list[SamplingParameters]) -> Proposal:
    """A proposal of its own memory."""
    if output.logits is None:
        raise ConfigurationError("logits", None, "allocate the workspace with logits")
    logits = output.logits.clone()
    rows, gamma, size = logits.shape
    repeated = [p for p in parameters for _ in range(gamma)]
    probabilities = processed_by_request(logits.flatten(0, 1), repeated)
    confidence = output.confidence_logits
    return Proposal(
        tokens=output.tokens.clone(),
        draft_ids=output.draft_ids.clone(),
        logits=logits,
        probabilities=probabilities.view(rows, gamma, size),
        confidence_logits=None if confidence is None else confidence.clone(),
    )
