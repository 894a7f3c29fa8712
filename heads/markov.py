"""Markov heads: a low-rank transition bias that makes a parallel block left-to-right.

The drafter's logits at position k are U_k + B(x_{k−1}, …) with B = W1[x_{k−1}] · W2
(DSpark paper, §3.1, Eq. 5). The previous token is always a token of the target (the anchor is),
so W1 covers the target's vocabulary; W2 covers what the drafter can propose.

Letters: V target vocabulary, V' draft vocabulary, r rank, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError
from heads.configuration import DrafterConfiguration


class MarkovHead(nn.Module):
    """First-order transition bias W1[x_{k−1}] · W2.

    Args:
        configuration: its vocabularies, rank and hidden size are used.
    """

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__()
        if configuration.markov_rank < 1:
            raise ConfigurationError(
                "markov_rank", configuration.markov_rank, "a Markov head needs a rank of 1 or more"
            )
        self.rank = configuration.markov_rank
        self.markov_w1 = nn.Embedding(configuration.vocab_size, self.rank)
        self.markov_w2 = nn.Linear(self.rank, configuration.draft_vocab_size, bias=False)

    def previous_embedding(self, previous: Tensor) -> Tensor:
        """W1[x_{k−1}] for target ids [...]; [..., r]. Also an input of the confidence head."""
        embedded: Tensor = self.markov_w1(previous)
        return embedded

    def initial_state(self, like: Tensor) -> Tensor:
        """State before position 1, shaped after hidden states [..., D]; first-order heads keep
        none, so it has width 0."""
        return like.new_zeros(*like.shape[:-1], 0)

    def step(
        self,
        previous: Tensor,  # [...] long, target ids x_{k−1}
        hidden: Tensor,  # [..., D] backbone output at position k
        state: Tensor,  # [..., state width]
    ) -> tuple[Tensor, Tensor]:
        """Bias of position k, [..., V'], and the state after it."""
        del hidden
        bias: Tensor = self.markov_w2(self.previous_embedding(previous))
        return bias, state

    def block(
        self,
        previous: Tensor,  # [..., γ] long
        hidden: Tensor,  # [..., γ, D]
    ) -> Tensor:
        """Biases of a teacher-forced block, [..., γ, V']."""
        bias, _ = self.step(previous, hidden, self.initial_state(hidden))
        return bias


class GatedMarkovHead(MarkovHead):
    """Transition bias whose rank-r code is gated by the position's hidden state.

    B = (σ(W_g [h_k; W1[x_{k−1}]]) ⊙ W1[x_{k−1}]) · W2.
    """

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__(configuration)
        self.gate_proj = nn.Linear(configuration.hidden_size + self.rank, self.rank)

    def step(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Gated bias of position k, [..., V']; the state stays empty."""
        embedded = self.previous_embedding(previous)
        gate = torch.sigmoid(self.gate_proj(torch.cat([hidden, embedded], dim=-1)))
        bias: Tensor = self.markov_w2(gate * embedded)
        return bias, state
