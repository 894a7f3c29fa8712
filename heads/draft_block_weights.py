"""Weights of Markov and confidence head in the form in which a draft block reads them.

Letters: V target vocabulary, V' draft vocabulary (of one shard), r rank, D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads.confidence import ConfidenceHead
from heads.configuration import MarkovHeadType
from heads.markov import GatedMarkovHead, MarkovHead
from heads.rnn import RecurrentHead

# Outputs of the state projection in units of r: the gate; or gate, candidate and output.
_STATE_OUTPUTS: dict[MarkovHeadType, int] = {"vanilla": 0, "gated": 1, "rnn": 3}
_FLOAT8_LARGEST = 448.0  # of e4m3
# Keeps rows of zeros divisible; far below any trained weight.
_LEAST_SCALE = 2.0**-100


@dataclass(frozen=True, slots=True)
class DraftBlockWeights:
    """Weights of Markov and confidence head.

    Attributes:
        head: vanilla, gated or rnn.
        w1: [V, r] codes of previous tokens, float32 or bfloat16.
        w2: [V', r] rows of the proposed tokens: float32, bfloat16 or float8 e4m3.
        w2_scales: [V'] float32 factor of each row of a float8 ``w2``, else None.
        state_hidden: [r, D] or [3r, D], columns of the gate's or joint projection that read h;
            None for a vanilla head, as the next three.
        state_code: [r, r] or [3r, r], columns that read W1[x_{k−1}].
        state_recurrent: [3r, r], columns that read s_{k−1}; RNN head only.
        state_bias: [r] or [3r].
        confidence_hidden: [D] float32, weights of h; None without a confidence head.
        confidence_code: [r] float32, weights of W1[x_{k−1}]; None without the Markov input.
        confidence_bias: [1] float32; None without a confidence head.
        draft_to_target: [V' of all shards] long, target id of each draft id; None where both
            vocabularies are one.
        vocabulary_offset: draft id of the first row of ``w2``; a multiple of 4, because one
            counter of the random stream serves four ids.

    Raises:
        ConfigurationError: parts that do not belong together.
    """

    head: MarkovHeadType
    w1: Tensor
    w2: Tensor
    w2_scales: Tensor | None = None
    state_hidden: Tensor | None = None
    state_code: Tensor | None = None
    state_recurrent: Tensor | None = None
    state_bias: Tensor | None = None
    confidence_hidden: Tensor | None = None
    confidence_code: Tensor | None = None
    confidence_bias: Tensor | None = None
    draft_to_target: Tensor | None = None
    vocabulary_offset: int = 0

    def __post_init__(self) -> None:
        if self.w1.dim() != 2 or self.w2.dim() != 2 or self.w1.shape[1] != self.w2.shape[1]:
            shapes = tuple(self.w1.shape), tuple(self.w2.shape)
            raise ConfigurationError("w2", shapes, "give [V, r] and [V', r] of one rank")
        if (self.w2.dtype == torch.float8_e4m3fn) != (self.w2_scales is not None):
            raise ConfigurationError(
                "w2_scales", self.w2.dtype, "give [V'] scales with a float8 w2 and only then"
            )
        has_state = (self.state_hidden is not None, self.state_recurrent is not None)
        if has_state != (self.head != "vanilla", self.head == "rnn"):
            raise ConfigurationError("head", self.head, "give the state weights of this head")
        if self.vocabulary_offset % 4 or self.vocabulary_offset < 0:
            raise ConfigurationError(
                "vocabulary_offset", self.vocabulary_offset, "begin shards at a multiple of 4"
            )
        for name in ("w1", "w2", "state_hidden", "state_code", "state_recurrent"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.stride(-1) != 1:
                raise ConfigurationError(name, tensor.stride(), "give rows without gaps")

    @property
    def rank(self) -> int:
        """r."""
        return self.w1.shape[1]

    @property
    def shard_size(self) -> int:
        """V', the rows of ``w2``."""
        return self.w2.shape[0]

    @property
    def state_outputs(self) -> int:
        """Width of the state projection in units of r: 0, 1 or 3."""
        return _STATE_OUTPUTS[self.head]

    @property
    def operand(self) -> torch.dtype:
        """Type in which codes meet ``w2``: float32, or bfloat16 with a bfloat16 or float8 one."""
        return torch.float32 if self.w2.dtype == torch.float32 else torch.bfloat16

    @property
    def hidden_size(self) -> int | None:
        """D, where a state or a confidence head reads h."""
        for tensor in (self.state_hidden, self.confidence_hidden):
            if tensor is not None:
                return tensor.shape[-1]
        return None

    @classmethod
    def from_heads(
        cls,
        markov: MarkovHead,
        confidence: ConfidenceHead | None,
        draft_to_target: Tensor | None = None,
    ) -> DraftBlockWeights:
        """The modules' own weights, shared; only the confidence head's are copied, as float32."""
        head: MarkovHeadType = "vanilla"
        state: dict[str, Tensor] = {}
        if isinstance(markov, GatedMarkovHead):
            head, state = "gated", _gate_parts(markov)
        elif isinstance(markov, RecurrentHead):
            head, state = "rnn", _joint_parts(markov)
        weights = cls(
            head,
            markov.markov_w1.weight.detach(),
            markov.markov_w2.weight.detach(),
            state_hidden=state.get("hidden"),
            state_code=state.get("code"),
            state_recurrent=state.get("recurrent"),
            state_bias=state.get("bias"),
            draft_to_target=draft_to_target,
        )
        if confidence is None:
            return weights
        flat = confidence.proj.weight.detach().float().flatten()
        hidden = len(flat) - (weights.rank if confidence.with_markov else 0)
        return replace(
            weights,
            confidence_hidden=flat[:hidden],
            confidence_code=flat[hidden:] if confidence.with_markov else None,
            confidence_bias=confidence.proj.bias.detach().float(),
        )

    def with_w2(self, dtype: torch.dtype) -> DraftBlockWeights:
        """The same heads with ``w2`` in another type, and codes and state in its operand's.

        float8 e4m3 takes one scale a row: the row's largest weight over 448.
        """
        narrow = torch.float32 if dtype == torch.float32 else torch.bfloat16
        w2, scales = self.w2.float(), None
        if dtype == torch.float8_e4m3fn:
            scales = (w2.abs().amax(dim=1) / _FLOAT8_LARGEST).clamp(min=_LEAST_SCALE)
            w2 = w2 / scales[:, None]
        names = ("w1", "state_hidden", "state_code", "state_recurrent")
        parts = {name: getattr(self, name) for name in names}
        return replace(
            self,
            w2=w2.to(dtype),
            w2_scales=scales,
            **{name: part.to(narrow) for name, part in parts.items() if part is not None},
        )


def _gate_parts(markov: GatedMarkovHead) -> dict[str, Tensor]:
    """Columns of the gate over [h; e]."""
    weight = markov.gate_proj.weight.detach()
    width = weight.shape[1] - markov.rank
    return {
        "hidden": weight[:, :width],
        "code": weight[:, width:],
        "bias": markov.gate_proj.bias.detach(),
    }


def _joint_parts(markov: RecurrentHead) -> dict[str, Tensor]:
    """Columns of the joint projection over [s; e; h]."""
    weight, rank = markov.joint_proj.weight.detach(), markov.rank
    return {
        "recurrent": weight[:, :rank],
        "code": weight[:, rank : 2 * rank],
        "hidden": weight[:, 2 * rank :],
        "bias": markov.joint_proj.bias.detach(),
    }
