"""Confidence head: how likely position k is accepted, given that all before it were.

z_k = wᵀ[h_k; W1[x_{k−1}]] + b (DSpark paper, §3.2.1, Eq. 7; the bias follows the public
checkpoints). The logit is returned raw and in float32: temperatures belong to the calibration.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError
from heads.configuration import DrafterConfiguration


class ConfidenceHead(nn.Module):
    """One linear layer from hidden state and previous-token code to a logit."""

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__()
        self.with_markov = configuration.confidence_head_with_markov
        self.proj = nn.Linear(configuration.confidence_width, 1)

    def forward(
        self,
        hidden: Tensor,  # [..., D]
        previous_embedding: Tensor | None,  # [..., r]; unused without the Markov input
    ) -> Tensor:
        """Raw confidence logits, [...] float32 whatever the model's type, as engines serve them.

        Raises:
            ConfigurationError: the head reads W1[x_{k−1}] and got none.
        """
        features = hidden.float()
        if self.with_markov:
            if previous_embedding is None:
                raise ConfigurationError(
                    "previous_embedding",
                    None,
                    "confidence_head_with_markov needs the Markov head's W1[x_{k−1}]",
                )
            features = torch.cat([features, previous_embedding.float()], dim=-1)
        weight, bias = self.proj.weight.float(), self.proj.bias.float()
        return nn.functional.linear(features, weight, bias).squeeze(-1)
