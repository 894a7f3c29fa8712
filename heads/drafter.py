"""The drafter: parallel backbone, Markov or RNN head and confidence head as one module.

Two ways through it. Training teacher-forces whole blocks at many anchors of a sequence at once.
Serving drafts one block a request, left to right, and keeps the exact distribution every token
was drawn from, because lossless verification and exact labels both need it.

Letters: B sequences, A anchors a sequence, R requests, γ positions, V' draft vocabulary,
S context length, D hidden size.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from calib.canonical_json import canonical_json
from calib.errors import ConfigurationError
from heads.backbone import KeysValues, ParallelBackbone
from heads.confidence import ConfidenceHead
from heads.configuration import DrafterConfiguration
from heads.rnn import build_markov_head
from heads.sampling import SamplingParameters, draw, processed_probabilities


@dataclass(frozen=True, slots=True)
class TeacherForcedBlock:
    """Outputs of :meth:`Drafter.teacher_forced`.

    Attributes:
        logits: [B, A, γ, V'] draft logits with the Markov bias.
        confidence_logits: [B, A, γ] float32, or None without a confidence head.
    """

    logits: Tensor
    confidence_logits: Tensor | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """One drafted block a request.

    Attributes:
        tokens: [R, γ] long, ids of the target's vocabulary.
        draft_ids: [R, γ] long, the same tokens in the draft vocabulary.
        logits: [R, γ, V'] draft logits with the Markov bias, before temperature.
        probabilities: [R, γ, V'] float32, what each token was really drawn from; rows of greedy
            requests are one-hot.
        confidence_logits: [R, γ] float32 raw logits, or None without a confidence head.
    """

    tokens: Tensor
    draft_ids: Tensor
    logits: Tensor
    probabilities: Tensor
    confidence_logits: Tensor | None


class Drafter(nn.Module):
    """A DSpark drafter over a frozen target's embedding and language-model head.

    Args:
        configuration: shapes.
        embedding: [V, D] the target's token embedding, frozen and shared.
        head: [V, D] the target's language-model head, frozen; the rows of the draft vocabulary
            are taken from it.
        draft_to_target: [V'] long, target id of each draft id, strictly increasing; None where
            the draft vocabulary is the target's.

    Raises:
        ConfigurationError: tensors whose shapes the configuration does not have, or a mapping
            that does not fit its vocabularies.
    """

    d2t: Tensor  # [V'] long, target id minus draft id
    _embedding: Tensor  # [V, D]
    _head: Tensor  # [V', D]

    def __init__(
        self,
        configuration: DrafterConfiguration,
        embedding: Tensor,
        head: Tensor,
        draft_to_target: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.configuration = configuration
        for name, tensor in (("embedding", embedding), ("head", head)):
            expected = (configuration.vocab_size, configuration.hidden_size)
            if tuple(tensor.shape) != expected:
                raise ConfigurationError(
                    name, tuple(tensor.shape), f"give {list(expected)}, as the configuration says"
                )
        mapping = _check_mapping(configuration, draft_to_target)
        # Offsets, as published checkpoints with a reduced vocabulary store them.
        self.register_buffer("d2t", mapping - torch.arange(len(mapping)))
        self.model = ParallelBackbone(configuration)
        self.markov_head = build_markov_head(configuration)
        self.confidence_head: ConfidenceHead | None = None
        if configuration.enable_confidence_head:
            self.confidence_head = ConfidenceHead(configuration)
        # Not parameters of this module: they belong to the target and are never saved with it.
        self.register_buffer("_embedding", embedding.detach().float(), persistent=False)
        reduced = configuration.draft_vocab_size < configuration.vocab_size
        own_head = head.detach()[mapping].contiguous() if reduced else head.detach()
        self.register_buffer("_head", own_head.float(), persistent=False)

    @property
    def gamma(self) -> int:
        """γ, draft positions of a block."""
        return self.configuration.block_size

    @property
    def draft_to_target(self) -> Tensor:
        """[V'] long, target id of each draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    @property
    def target_embedding(self) -> Tensor:
        """[V, D] the target's token embedding, shared and frozen."""
        return self._embedding

    def weights_digest(self) -> str:
        """SHA-256 over configuration, names and bytes of the weights: this drafter's identity."""
        digest = hashlib.sha256(canonical_json(self.configuration.to_dict()))
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy())
        return digest.hexdigest()

    def renew_confidence_head(self, *, with_markov: bool | None = None) -> None:
        """Put in a new confidence head, which says one half everywhere until it is trained.

        Args:
            with_markov: whether it reads W1[x_{k−1}]; None: where there is a Markov head, unless
                the configuration says no.

        Raises:
            ConfigurationError: a Markov-fed head for a drafter without a Markov head.
        """
        if with_markov is None:
            with_markov = self.configuration.confidence_head_with_markov
            with_markov = with_markov and self.markov_head is not None
        self.configuration = replace(
            self.configuration, enable_confidence_head=True, confidence_head_with_markov=with_markov
        )
        head = ConfidenceHead(self.configuration)
        nn.init.zeros_(head.proj.weight)
        nn.init.zeros_(head.proj.bias)
        self.confidence_head = head.to(self.model.fc.weight)

    def block_input(self, anchors: Tensor) -> Tensor:
        """Embeddings of anchor and masks: [...] ids to [..., γ, D]."""
        ids = torch.full(
            (*anchors.shape, self.gamma),
            self.configuration.mask_token_id,
            dtype=torch.long,
            device=anchors.device,
        )
        ids[..., 0] = anchors
        return nn.functional.embedding(ids, self._embedding)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U_k over the draft vocabulary: [..., D] to [..., V']."""
        return nn.functional.linear(hidden, self._head)

    def teacher_forced(
        self,
        tokens: Tensor,  # [B, S] long
        features: Tensor,  # [B, S, L * D]
        anchor_positions: Tensor,  # [B, A] long; position of each block's anchor
    ) -> TeacherForcedBlock:
        """Logits of whole blocks whose previous tokens are the sequence's own.

        Block a of sequence b starts at anchor x_t with t = ``anchor_positions[b, a]`` and sees
        the context before t. Positions that run over the end of a sequence repeat its last
        token; the caller masks them.
        """
        batch, length = tokens.shape
        anchors = anchor_positions.shape[1]
        offsets = torch.arange(self.gamma, device=tokens.device)
        positions = anchor_positions[..., None] + offsets  # [B, A, γ]
        previous = tokens.gather(1, positions.clamp(max=length - 1).flatten(1))
        previous = previous.view(batch, anchors, self.gamma)
        embedded = self.block_input(previous[..., 0]).flatten(1, 2)
        context = self.model.context(
            features, torch.arange(length, device=tokens.device).expand(batch, length)
        )
        mask = _training_mask(anchor_positions, length, self.gamma)
        hidden = self.model(embedded, positions.flatten(1), context, mask)
        hidden = hidden.view(batch, anchors, self.gamma, -1)
        logits = self.base_logits(hidden)
        if self.markov_head is not None:
            logits = logits + self.markov_head.block(previous, hidden)
        return TeacherForcedBlock(logits, self._confidence(hidden, previous))

    def propose(
        self,
        anchors: Tensor,  # [R] long
        positions: Tensor,  # [R] long, position of each anchor in its sequence
        context: list[KeysValues],
        context_mask: Tensor,  # [R, S] bool, True for entries before the anchor
        parameters: list[SamplingParameters],
        uniforms: Tensor,  # [R, γ] in [0, 1)
    ) -> Proposal:
        """Draft one block a request, left to right."""
        hidden = self.block_hidden(anchors, positions, context, context_mask)
        return self._sample(anchors, hidden, parameters, uniforms)

    def block_hidden(
        self,
        anchors: Tensor,  # [R] long
        positions: Tensor,  # [R] long, position of each anchor in its sequence
        context: list[KeysValues],
        context_mask: Tensor,  # [R, S] bool, True for entries before the anchor
    ) -> Tensor:
        """Backbone output h of a block a request, [R, γ, D]: all positions at once."""
        offsets = torch.arange(self.gamma, device=anchors.device)
        block = torch.ones(len(anchors), self.gamma, dtype=torch.bool, device=anchors.device)
        mask = torch.cat([context_mask, block], dim=1)[:, None].expand(-1, self.gamma, -1)
        hidden: Tensor = self.model(
            self.block_input(anchors), positions[:, None] + offsets, context, mask
        )
        return hidden

    def _sample(
        self,
        anchors: Tensor,  # [R] long
        hidden: Tensor,  # [R, γ, D]
        parameters: list[SamplingParameters],
        uniforms: Tensor,  # [R, γ]
    ) -> Proposal:
        """The sequential stage: each position sees the token drawn before it."""
        base = self.base_logits(hidden)
        head = self.markov_head
        previous = anchors
        state = hidden if head is None else head.initial_state(hidden[:, 0])
        ids, logits, probabilities, confidences = [], [], [], []
        for position in range(self.gamma):
            step = base[:, position]
            if head is not None:
                bias, state = head.step(previous, hidden[:, position], state)
                step = step + bias
            confidence = self._confidence(hidden[:, position], previous)
            if confidence is not None:
                confidences.append(confidence)
            weights = processed_by_request(step, parameters)
            drawn = draw(weights, uniforms[:, position])
            previous = drawn + self.d2t[drawn]
            ids.append(drawn)
            logits.append(step)
            probabilities.append(weights)
        draft_ids = torch.stack(ids, dim=1)
        return Proposal(
            tokens=draft_ids + self.d2t[draft_ids],
            draft_ids=draft_ids,
            logits=torch.stack(logits, dim=1),
            probabilities=torch.stack(probabilities, dim=1),
            confidence_logits=torch.stack(confidences, dim=1) if confidences else None,
        )

    def _confidence(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        if self.confidence_head is None:
            return None
        embedded = None
        if self.markov_head is not None:
            embedded = self.markov_head.previous_embedding(previous)
        logits: Tensor = self.confidence_head(hidden, embedded)
        return logits


def processed_by_request(
    logits: Tensor,  # [R, V]
    parameters: list[SamplingParameters],
) -> Tensor:
    """Processed probabilities where each row samples in its own way; [R, V] float32.

    Raises:
        ConfigurationError: not one parameter set a row.
    """
    if len(parameters) != len(logits):
        raise ConfigurationError("parameters", len(parameters), f"give one a row, {len(logits)}")
    kinds = set(parameters)
    if len(kinds) == 1:
        return processed_probabilities(logits, parameters[0])
    result = torch.empty_like(logits, dtype=torch.float32)
    for kind in kinds:
        rows = torch.tensor([r for r, p in enumerate(parameters) if p == kind])
        result[rows] = processed_probabilities(logits[rows], kind)
    return result


def _check_mapping(configuration: DrafterConfiguration, draft_to_target: Tensor | None) -> Tensor:
    size, vocabulary = configuration.draft_vocab_size, configuration.vocab_size
    if draft_to_target is None:
        if size != vocabulary:
            raise ConfigurationError(
                "draft_to_target", None, f"a draft vocabulary of {size} of {vocabulary} needs it"
            )
        return torch.arange(vocabulary)
    mapping = draft_to_target.long().cpu()
    fits = mapping.shape == (size,) and bool((mapping.diff() > 0).all())
    if not fits or mapping[0] < 0 or mapping[-1] >= vocabulary:
        raise ConfigurationError(
            "draft_to_target",
            f"shape {tuple(mapping.shape)}, first and last {mapping[:1].tolist()}, "
            f"{mapping[-1:].tolist()}",
            f"give {size} strictly increasing ids from 0 to {vocabulary - 1}",
        )
    return mapping


def _training_mask(anchor_positions: Tensor, length: int, gamma: int) -> Tensor:
    """[B, A·γ, S + A·γ]: each block sees the context before its anchor, and itself."""
    batch, anchors = anchor_positions.shape
    device = anchor_positions.device
    before = torch.arange(length, device=device) < anchor_positions[..., None]  # [B, A, S]
    context = before.repeat_interleave(gamma, dim=1)
    block = torch.arange(anchors * gamma, device=device) // gamma
    own = block[:, None] == block
    return torch.cat([context, own.expand(batch, -1, -1)], dim=-1)
