"""Cached context of a drafter: every request's fused target features, as keys and values.

An entry depends on its own position alone, so verification's features are written once and stay;
entries of rejected tokens are overwritten by the tokens that take their positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from heads.backbone import KeysValues
from heads.drafter import Drafter


class DraftContextCache:
    """Per-slot keys and values of all draft layers.

    Args:
        drafter: whose fusion and projections fill it.
        slots: requests held at once.
        capacity: longest sequence of a slot.
    """

    def __init__(self, drafter: Drafter, slots: int, capacity: int) -> None:
        self._backbone = drafter.model
        configuration = drafter.configuration
        shape = (slots, capacity, configuration.num_key_value_heads, configuration.head_dim)
        like = drafter.model.fc.weight
        self._layers = [
            (like.new_zeros(shape), like.new_zeros(shape))
            for _ in range(configuration.num_hidden_layers)
        ]

    def write(
        self,
        rows: Tensor,  # [R] long, slots
        positions: Tensor,  # [R, Q] long
        features: Tensor,  # [R, Q, L * D]
    ) -> None:
        """Store the context entries of newly verified positions."""
        index = rows[:, None]
        fresh = self._backbone.context(features, positions)
        for (keys, values), (new_keys, new_values) in zip(self._layers, fresh, strict=True):
            keys[index, positions] = new_keys
            values[index, positions] = new_values

    def read(
        self,
        rows: Tensor,  # [R] long, slots
        anchors: Tensor,  # [R] long, position of each anchor
    ) -> tuple[list[KeysValues], Tensor]:
        """Context of each request, [R, S, …] a layer, and the mask [R, S] of what lies before
        its anchor. S is the longest of them."""
        length = int(anchors.max())
        mask = torch.arange(length, device=anchors.device) < anchors[:, None]
        pairs = [(keys[rows, :length], values[rows, :length]) for keys, values in self._layers]
        return pairs, mask
