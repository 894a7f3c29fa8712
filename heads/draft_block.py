"""What a draft block is computed from and into: inputs, buffers, results.

The semi-autoregressive half of a drafter's step. For every position k = 1 … γ of every row::

    e_k  = W1[x_{k−1}]                                        (gated and RNN heads: a latent of it)
    l_k  = U_k + e_k · W2ᵀ                                    corrected logits
    x_k  = argmax_v  l_k[v] + T · g(request, position, k, v)  T the row's temperature, 0 greedy
    z_k  = w · [h_k; W1[x_{k−1}]] + b                         raw confidence logit
    c_k  = σ(s_k z_k + b_k),   a_k = a_{k−1} c_k              calibrated confidence and survival

g is standard Gumbel noise (:mod:`heads.reference.counter_based_random`), so x_k is an exact draw
from softmax(l_k / T). :mod:`heads.kernels.draft_block` computes it on a GPU in γ + 1 launches,
:mod:`heads.reference.draft_block` in eager torch; both take what is defined here, and everything
either writes lies in a :class:`DraftBlockWorkspace` that the caller allocates once.

Letters: B rows, γ positions, V target vocabulary, V' draft vocabulary (of one shard), r rank,
D hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads.draft_block_weights import DraftBlockWeights

# Fewest draft ids that one program may reduce where log-sum-exp is wanted: sizes the scratch.
LEAST_IDS_A_PROGRAM = 16
_REQUEST_BITS = 32


@dataclass(frozen=True, slots=True)
class DraftBlockInputs:
    """One step's inputs. All lie on the weights' device; nothing of them is read by the host.

    Attributes:
        anchors: [B] long, target ids x_0. Ids outside the vocabulary are clamped into it.
        hidden: [B, γ, D] backbone output, float32 or bfloat16.
        base_logits: [B, γ, V'] U, float32 or bfloat16.
        temperatures: [B] float32, 0 greedy.
        request_keys: [B] long, each request's own (:func:`request_key`).
        positions: [B] long, position of each anchor in its sequence: no two blocks of a request
            may share one, or they share their noise.
        slopes: [γ] or [B, γ] float32, s_k of the served calibration, 1 / T_k for temperatures.
        intercepts: as ``slopes``, b_k.
        sampled: whether any row samples. False leaves the noise out, for batches known to be
            greedy; with True greedy rows are still exact.
    """

    anchors: Tensor
    hidden: Tensor
    base_logits: Tensor
    temperatures: Tensor
    request_keys: Tensor
    positions: Tensor
    slopes: Tensor
    intercepts: Tensor
    sampled: bool = True

    def __post_init__(self) -> None:
        rows, gamma = self.hidden.shape[:2]
        for name in ("anchors", "temperatures", "request_keys", "positions"):
            if tuple(getattr(self, name).shape) != (rows,):
                shape = tuple(getattr(self, name).shape)
                raise ConfigurationError(name, shape, f"give [{rows}], one a row of hidden")
        for name in ("slopes", "intercepts"):
            if tuple(getattr(self, name).shape) not in {(gamma,), (rows, gamma)}:
                shape = tuple(getattr(self, name).shape)
                raise ConfigurationError(name, shape, f"give [{gamma}] or [{rows}, {gamma}]")
        if self.base_logits.shape[:2] != (rows, gamma):
            shape = tuple(self.base_logits.shape)
            raise ConfigurationError("base_logits", shape, f"give [{rows}, {gamma}, V']")
        for name in ("hidden", "base_logits"):
            if getattr(self, name).stride(-1) != 1:
                raise ConfigurationError(
                    name, getattr(self, name).stride(), "give a last dimension without gaps"
                )

    @property
    def rows(self) -> int:
        """B."""
        return self.hidden.shape[0]

    @property
    def gamma(self) -> int:
        """γ."""
        return self.hidden.shape[1]


@dataclass(frozen=True, slots=True)
class DraftBlockOutput:
    """A drafted block; views of the workspace, overwritten by its next block.

    Attributes:
        tokens: [B, γ] long, target ids x_1 … x_γ.
        draft_ids: [B, γ] long, the same in the draft vocabulary.
        confidence_logits: [B, γ] float32, raw z_k; None without a confidence head, as the next
            two.
        confidences: [B, γ] float32, c_k.
        survival: [B, γ] float32, a_k.
        logits: [B, γ, V'] corrected logits as they were sampled from, or None.
        log_sum_exp: [B, γ] float32, log Σ_v exp(l_k[v] / T), with T = 1 for greedy rows; or None.
    """

    tokens: Tensor
    draft_ids: Tensor
    confidence_logits: Tensor | None
    confidences: Tensor | None
    survival: Tensor | None
    logits: Tensor | None
    log_sum_exp: Tensor | None


@dataclass(frozen=True, slots=True)
class DraftBlockWorkspace:
    """Every buffer of the block, allocated once for the largest batch.

    Scratch is reset by the first launch of every block, so a block that was aborted between two
    launches leaves nothing behind. One workspace serves one stream.

    Attributes:
        words: [γ, capacity] long, packed score and id of each row's best token so far.
        arrivals: [capacity] int32, programs that have finished the last position.
        projected: [capacity, γ, 0, r or 3r wide] float32, hidden part of gate or joint projection.
        states: [2, capacity, r] float32, s_{k−1} and s_k in turn; empty but for RNN heads.
        latents: [capacity, r] float32, what meets W2 instead of W1[x_{k−1}]; empty for vanilla.
        confidence_base: [capacity, γ] float32, w_h · h_k + b.
        partials: [2, 2, programs, capacity] float32, largest logit and sum of exponentials of
            each program, positions in turn; or None.
        results: at full capacity; :meth:`output` has those of a batch.
    """

    words: Tensor
    arrivals: Tensor
    projected: Tensor
    states: Tensor
    latents: Tensor
    confidence_base: Tensor
    partials: Tensor | None
    results: DraftBlockOutput

    @classmethod
    def allocate(
        cls,
        weights: DraftBlockWeights,
        capacity: int,
        gamma: int,
        *,
        logits: torch.dtype | None = None,
        log_sum_exp: bool = False,
    ) -> DraftBlockWorkspace:
        """Buffers for up to ``capacity`` rows on the weights' device.

        Args:
            weights: of the drafter.
            capacity: largest B.
            gamma: γ.
            logits: type in which corrected logits are kept; None keeps none. Tokens are sampled
                from what is kept, so in bfloat16 they are drawn from rounded logits.
            log_sum_exp: whether it is wanted.

        Raises:
            ConfigurationError: no rows or positions, or a type that logits are not kept in.
        """
        for name, value in (("capacity", capacity), ("gamma", gamma)):
            if value < 1:
                raise ConfigurationError(name, value, "give 1 or more")
        if logits not in (None, torch.float32, torch.bfloat16):
            raise ConfigurationError("logits", logits, "keep them as float32 or bfloat16")
        device, rank = weights.w2.device, weights.rank

        def real(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        def whole(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        programs = -(-weights.shard_size // LEAST_IDS_A_PROGRAM)
        recurrent = rank if weights.head == "rnn" else 0
        block = (capacity, gamma)
        confident = weights.confidence_hidden is not None
        kept = None
        if logits is not None:
            kept = torch.zeros(*block, weights.shard_size, dtype=logits, device=device)
        return cls(
            words=whole(gamma, capacity),
            arrivals=whole(capacity, dtype=torch.int32),
            projected=real(*block, weights.state_outputs * rank),
            states=real(2, capacity, recurrent),
            latents=real(capacity, 0 if weights.head == "vanilla" else rank),
            confidence_base=real(*block),
            partials=real(2, 2, programs, capacity) if log_sum_exp else None,
            results=DraftBlockOutput(
                tokens=whole(*block),
                draft_ids=whole(*block),
                confidence_logits=real(*block) if confident else None,
                confidences=real(*block) if confident else None,
                survival=real(*block) if confident else None,
                logits=kept,
                log_sum_exp=real(*block) if log_sum_exp else None,
            ),
        )

    @property
    def capacity(self) -> int:
        """Largest B."""
        return self.words.shape[1]

    @property
    def gamma(self) -> int:
        """γ."""
        return self.words.shape[0]

    def output(self, rows: int) -> DraftBlockOutput:
        """Results of the first ``rows`` rows."""
        found = self.results
        return DraftBlockOutput(
            tokens=found.tokens[:rows],
            draft_ids=found.draft_ids[:rows],
            confidence_logits=_first(found.confidence_logits, rows),
            confidences=_first(found.confidences, rows),
            survival=_first(found.survival, rows),
            logits=_first(found.logits, rows),
            log_sum_exp=_first(found.log_sum_exp, rows),
        )


class DraftBlock(Protocol):
    """A block under way, as both implementations offer it.

    ``prepare`` and then every position in turn. Between two positions the rows' ``words`` may be
    merged with those of other shards (:mod:`heads.kernels.vocabulary_shards`).
    """

    weights: DraftBlockWeights
    inputs: DraftBlockInputs
    workspace: DraftBlockWorkspace

    def prepare(self) -> None:
        """Reset the scratch and compute what depends on no token."""

    def position(self, index: int) -> None:
        """Draft position ``index`` + 1."""


def request_key(seed: int, request: int) -> int:
    """Key of a request's random stream, a function of (seed, request) alone.

    Raises:
        ConfigurationError: a number outside 0 … 2³² − 1.
    """
    for name, value in (("seed", seed), ("request", request)):
        if not 0 <= value < 1 << _REQUEST_BITS:
            raise ConfigurationError(name, value, "give 0 to 4294967295")
    word = (seed << _REQUEST_BITS) | request
    return word - (1 << 64) if word >> 63 else word  # as a signed 64-bit number


def check_block(
    weights: DraftBlockWeights, inputs: DraftBlockInputs, workspace: DraftBlockWorkspace
) -> None:
    """Refuse parts that do not belong together.

    Raises:
        ConfigurationError: another width, more rows or positions than the workspace has, or
            tensors on several devices.
    """
    rows, gamma = inputs.rows, inputs.gamma
    if rows > workspace.capacity or gamma != workspace.gamma or rows < 1:
        raise ConfigurationError(
            "hidden",
            (rows, gamma),
            f"this workspace takes 1 to {workspace.capacity} rows of {workspace.gamma} positions",
        )
    width = inputs.base_logits.shape[-1]
    if width != weights.shard_size:
        raise ConfigurationError("base_logits", width, f"give {weights.shard_size} ids, as w2")
    if weights.hidden_size not in (None, inputs.hidden.shape[-1]):
        raise ConfigurationError(
            "hidden", tuple(inputs.hidden.shape), f"give width {weights.hidden_size}"
        )
    places = {
        weights.w1.device,
        weights.w2.device,
        workspace.words.device,
        *(getattr(inputs, name).device for name in _INPUT_TENSORS),
    }
    if len(places) > 1:
        raise ConfigurationError("device", sorted(map(str, places)), "use one device")


_INPUT_TENSORS = (
    "anchors",
    "hidden",
    "base_logits",
    "temperatures",
    "request_keys",
    "positions",
    "slopes",
    "intercepts",
)


def _first(values: Tensor | None, rows: int) -> Tensor | None:
    return None if values is None else values[:rows]
