"""DFlash-style parallel backbone: one pass gives the hidden states of a whole block.

The block's input is the anchor followed by γ − 1 masks, and the anchor's own position predicts
the first draft token. Every draft layer attends to the block itself, in both directions, and to
the context: hidden states of several target layers, fused once (``fc``, ``hidden_norm``) and
projected by each layer's own key and value weights (DSpark paper, §3.1).

Letters: B sequences, Q block positions (γ, or several blocks of γ), S context length, D hidden.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from heads.configuration import DrafterConfiguration

KeysValues = tuple[Tensor, Tensor]  # each [B, S, kv_heads, head_dim], keys rotated


class RotaryPositions(nn.Module):
    """Rotary position embedding for any integer positions."""

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__()
        self._head_dim = configuration.head_dim
        self._theta = configuration.rope_theta

    def forward(
        self,
        heads: Tensor,  # [B, N, heads, head_dim]
        positions: Tensor,  # [B, N]
    ) -> Tensor:
        """The same heads, turned to their positions."""
        # Not a buffer: a model cast to half precision would round its frequencies.
        half = torch.arange(0, self._head_dim, 2, dtype=torch.float32, device=positions.device)
        angles = positions[..., None].float() * self._theta ** (-half / self._head_dim)
        angles = torch.cat([angles, angles], dim=-1)[:, :, None]
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        return (heads * angles.cos() + turned * angles.sin()).to(heads.dtype)


class DraftAttention(nn.Module):
    """Attention from block positions to context and block."""

    def __init__(self, configuration: DrafterConfiguration, rotary: RotaryPositions) -> None:
        super().__init__()
        self._rotary = [rotary]  # in a list, so that the shared module is registered only once
        self.heads = configuration.num_attention_heads
        self.kv_heads = configuration.num_key_value_heads
        self.head_dim = configuration.head_dim
        width, bias = configuration.hidden_size, configuration.attention_bias
        self.q_proj = nn.Linear(width, self.heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=bias)
        eps = configuration.rms_norm_eps
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if configuration.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=eps)

    def keys_values(
        self,
        states: Tensor,  # [B, N, D]
        positions: Tensor,  # [B, N]
    ) -> KeysValues:
        """Keys and values of context or block states."""
        shape = (*states.shape[:2], self.kv_heads, self.head_dim)
        keys = self._rotary[0](self.k_norm(self.k_proj(states).view(shape)), positions)
        return keys, self.v_proj(states).view(shape)

    def forward(
        self,
        states: Tensor,  # [B, Q, D]
        positions: Tensor,  # [B, Q]
        context: KeysValues,
        mask: Tensor,  # [B, Q, S + Q] bool, True where attention is allowed
    ) -> Tensor:
        """Attended states of the block, [B, Q, D]."""
        batch, new, _ = states.shape
        query = self.q_norm(self.q_proj(states).view(batch, new, self.heads, self.head_dim))
        query = self._rotary[0](query, positions)
        keys, values = self.keys_values(states, positions)
        keys = torch.cat([context[0], keys], dim=1).transpose(1, 2)
        values = torch.cat([context[1], values], dim=1).transpose(1, 2)
        groups = self.heads // self.kv_heads
        # Query heads that share a key head are folded into the query axis: no repeated keys.
        folded = query.transpose(1, 2).reshape(batch, self.kv_heads, groups * new, self.head_dim)
        out = nn.functional.scaled_dot_product_attention(
            folded, keys, values, attn_mask=mask[:, None].repeat(1, 1, groups, 1)
        )
        out = out.reshape(batch, self.heads, new, self.head_dim).transpose(1, 2)
        projected: Tensor = self.o_proj(out.reshape(batch, new, -1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU feed-forward layer."""

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__()
        width, inner = configuration.hidden_size, configuration.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """The same shape, [..., D]."""
        gated = nn.functional.silu(self.gate_proj(states)) * self.up_proj(states)
        projected: Tensor = self.down_proj(gated)
        return projected


class DraftLayer(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, configuration: DrafterConfiguration, rotary: RotaryPositions) -> None:
        super().__init__()
        width, eps = configuration.hidden_size, configuration.rms_norm_eps
        self.self_attn = DraftAttention(configuration, rotary)
        self.mlp = FeedForward(configuration)
        self.input_layernorm = nn.RMSNorm(width, eps=eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=eps)

    def forward(
        self, states: Tensor, positions: Tensor, context: KeysValues, mask: Tensor
    ) -> Tensor:
        """States after this layer, [B, Q, D]; arguments as :meth:`DraftAttention.forward`."""
        states = states + self.self_attn(self.input_layernorm(states), positions, context, mask)
        states = states + self.mlp(self.post_attention_layernorm(states))
        return states


class ParallelBackbone(nn.Module):
    """All draft layers with the fusion of target features.

    Args:
        configuration: shapes.
    """

    def __init__(self, configuration: DrafterConfiguration) -> None:
        super().__init__()
        width, eps = configuration.hidden_size, configuration.rms_norm_eps
        rotary = RotaryPositions(configuration)
        self.rotary = rotary
        self.layers = nn.ModuleList(
            [DraftLayer(configuration, rotary) for _ in range(configuration.num_hidden_layers)]
        )
        self.norm = nn.RMSNorm(width, eps=eps)
        self.fc = nn.Linear(len(configuration.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)

    def draft_layers(self) -> list[DraftLayer]:
        """The layers in order, with their type."""
        return [cast(DraftLayer, layer) for layer in self.layers]

    def context(
        self,
        features: Tensor,  # [B, S, L * D] hidden states of the chosen target layers
        positions: Tensor,  # [B, S]
    ) -> list[KeysValues]:
        """Keys and values of the context, one pair a draft layer. Cacheable: each position's
        entry depends on that position alone."""
        # A half-precision target may have a float32 drafter.
        fused = self.hidden_norm(self.fc(features.to(self.fc.weight.dtype)))
        return [layer.self_attn.keys_values(fused, positions) for layer in self.draft_layers()]

    def forward(
        self,
        embedded: Tensor,  # [B, Q, D] anchor and mask embeddings
        positions: Tensor,  # [B, Q]
        context: list[KeysValues],
        mask: Tensor,  # [B, Q, S + Q] bool
    ) -> Tensor:
        """Hidden states h_k, [B, Q, D], after the final norm."""
        states = embedded
        for layer, pair in zip(self.draft_layers(), context, strict=True):
            states = layer(states, positions, pair, mask)
        normed: Tensor = self.norm(states)
        return normed
