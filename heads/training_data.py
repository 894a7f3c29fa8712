"""Batches of anchors from stored responses.

Letters: B sequences a batch, S longest length, A anchors a sequence, γ positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calib.errors import ConfigurationError
from heads.responses import Response


@dataclass(frozen=True, slots=True)
class AnchorBatch:
    """Padded sequences with random anchors.

    Attributes:
        tokens: [B, S] long, padded with 0.
        features: [B, S, L * D] float32 context features, zero where unknown.
        anchor_positions: [B, A] long.
        mask: [B, A, γ] bool, draft positions that have a target.
        last_hidden: [B, A, γ, D] float32, input of the target's head at each draft position's
            prefix, that is at position t + k − 1.
        log_normalizer: [B, A, γ] float32, of the target's logits there.
        labels: [B, A, γ] long, the token that follows (target id).
    """

    tokens: Tensor
    features: Tensor
    anchor_positions: Tensor
    mask: Tensor
    last_hidden: Tensor
    log_normalizer: Tensor
    labels: Tensor


def draft_vocabulary(responses: Sequence[Response], vocab_size: int, size: int) -> Tensor:
    """The ``size`` target ids most frequent in the responses, increasing; [size] long.

    Prompts count too, lightly: a token the model was asked about is one it may repeat.
    """
    if not 1 <= size <= vocab_size:
        raise ConfigurationError("draft_vocab_size", size, f"give a size from 1 to {vocab_size}")
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for response in responses:
        tokens = response.tokens.long()
        share = torch.ones(len(tokens), dtype=torch.float64)
        share[: response.prompt_length] = 0.1
        counts.index_add_(0, tokens, share)
    # Ties go to lower ids: those are the shorter, more frequent merges of the tokenizer.
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:size].sort().values


class AnchorSampler:
    """Endless batches of random anchors, reproducible from a seed and a step number.

    Args:
        responses: training responses; those too short for a single block are left out.
        gamma: γ.
        hidden_size: D; the last D features of a position are its last hidden state.
        sequences: B.
        anchors: A.
        seed: of order and anchors.

    Raises:
        ConfigurationError: no response is long enough, or responses whose features differ in
            width or are narrower than D.
    """

    def __init__(
        self,
        responses: Sequence[Response],
        *,
        gamma: int,
        hidden_size: int,
        sequences: int,
        anchors: int,
        seed: int,
    ) -> None:
        # A block needs an anchor and one token after it.
        self._responses = [r for r in responses if len(r.tokens) - r.prompt_length >= 2]
        if not self._responses:
            raise ConfigurationError("responses", len(responses), "none is long enough to train on")
        widths = sorted({r.features.shape[-1] for r in self._responses})
        if len(widths) > 1 or widths[0] < hidden_size:
            raise ConfigurationError(
                "responses",
                f"features of width {widths}",
                f"sample all with the same layers of a target of hidden size {hidden_size}",
            )
        self._gamma = gamma
        self._hidden = hidden_size
        self._sequences = sequences
        self._anchors = anchors
        self._seed = seed

    def batches(self, first_step: int, steps: int) -> Iterator[AnchorBatch]:
        """Batches ``first_step`` … ``steps − 1``: a resumed run sees what an unbroken one would."""
        for step in range(first_step, steps):
            yield self.batch(step)

    def batch(self, step: int) -> AnchorBatch:
        """The batch of one step."""
        generator = np.random.default_rng([self._seed, step])
        epoch, offset = divmod(step * self._sequences, len(self._responses))
        order = np.concatenate(
            [
                np.random.default_rng([self._seed, 1 << 20, epoch + e]).permutation(
                    len(self._responses)
                )
                for e in range(1 + -(-self._sequences // len(self._responses)))
            ]
        )
        chosen = [self._responses[i] for i in order[offset : offset + self._sequences]]
        return self._collate(chosen, generator)

    def _collate(self, chosen: list[Response], generator: np.random.Generator) -> AnchorBatch:
        longest = max(len(r.tokens) for r in chosen)
        width = chosen[0].features.shape[-1]
        tokens = torch.zeros(len(chosen), longest, dtype=torch.long)
        features = torch.zeros(len(chosen), longest, width)
        normalizers = torch.zeros(len(chosen), longest)
        anchors = torch.zeros(len(chosen), self._anchors, dtype=torch.long)
        lengths = torch.tensor([len(r.tokens) for r in chosen])
        for row, response in enumerate(chosen):
            tokens[row, : len(response.tokens)] = response.tokens.long()
            features[row, : len(response.features)] = response.features.float()
            normalizers[row, : len(response.features)] = response.log_normalizer
            # An anchor is a sampled token whose follower is known.
            candidates = np.arange(response.prompt_length, len(response.tokens) - 1)
            picked = generator.choice(
                candidates, self._anchors, replace=len(candidates) < self._anchors
            )
            anchors[row] = torch.from_numpy(np.sort(picked))
        positions = anchors[..., None] + torch.arange(self._gamma)  # prefix end of each position
        mask = positions + 1 < lengths[:, None, None]
        flat = positions.clamp(max=longest - 2).flatten(1)
        rows = torch.arange(len(chosen))[:, None]
        shape = (len(chosen), self._anchors, self._gamma)
        return AnchorBatch(
            tokens=tokens,
            features=features,
            anchor_positions=anchors,
            mask=mask,
            last_hidden=features[rows, flat, -self._hidden :].view(*shape, self._hidden),
            log_normalizer=normalizers[rows, flat].view(shape),
            labels=tokens[rows, flat + 1].view(shape),
        )
