"""RNN head: a gated recurrent state that carries the whole drafted prefix of a block.

One joint projection of [s_{k−1}; W1[x_{k−1}]; h_k] gives gate, candidate and output
(DSpark paper, §3.1, Eq. 6)::

    s_k = g ⊙ s_{k−1} + (1 − g) ⊙ tanh(candidate),   g = σ(gate)
    B_k = tanh(output) · W2
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from heads.configuration import DrafterConfiguration
from heads.markov import GatedMarkovHead, MarkovHead


class RecurrentHead(MarkovHead):
    """Markov head whose bias depends on every earlier token of the block."""

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__(configuration)
        width = 2 * self.rank + configuration.hidden_size
        self.joint_proj = nn.Linear(width, 3 * self.rank)

    def initial_state(self, like: Tensor) -> Tensor:
        """s_0 = 0, [..., r]."""
        return like.new_zeros(*like.shape[:-1], self.rank)

    def step(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Bias of position k, [..., V'], and s_k, [..., r]."""
        joined = torch.cat([state, self.previous_embedding(previous), hidden], dim=-1)
        gate, candidate, output = self.joint_proj(joined).chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        state = gate * state + (1.0 - gate) * torch.tanh(candidate)
        bias: Tensor = self.markov_w2(torch.tanh(output))
        return bias, state

    def block(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """Biases of a teacher-forced block, [..., γ, V'], position after position."""
        state = self.initial_state(hidden[..., 0, :])
        biases = []
        for position in range(previous.shape[-1]):
            bias, state = self.step(previous[..., position], hidden[..., position, :], state)
            biases.append(bias)
        return torch.stack(biases, dim=-2)


def build_markov_head(configuration: DrafterConfiguration) -> MarkovHead | None:
    """The head that the configuration names, or None at rank 0."""
    if configuration.markov_rank == 0:
        return None
    kinds: dict[str, type[MarkovHead]] = {
        "vanilla": MarkovHead,
        "gated": GatedMarkovHead,
        "rnn": RecurrentHead,
    }
    return kinds[configuration.markov_head_type](configuration)
