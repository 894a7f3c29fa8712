"""Attention and key-value cache for rows of different length in one forward pass.

Transformers builds its caches for batches that move in step. Speculative decoding does not:
every row accepts as many tokens as it likes, and takes back what was rejected. Here each token
lies at the index of its own position, and the mask, which the caller gives, hides the rest.

Letters: R rows (requests) of one call, Q new tokens a row, S cache length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from calib.errors import ConfigurationError, TargetLoadError

ATTENTION_NAME = "dspark_grouped"


def grouped_attention(
    module: nn.Module,
    query: Tensor,  # [R, heads, Q, head_dim]
    key: Tensor,  # [R, kv_heads, S, head_dim]
    value: Tensor,  # [R, kv_heads, S, head_dim]
    attention_mask: Tensor | None,  # [R, 1, Q, S] additive; None is causal
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention that never repeats keys or values.

    The query heads that share a key head are folded into the query axis, because on a CPU
    the copies that repeating makes cost more than the attention itself.

    Raises:
        TargetLoadError: the model asks for an attention that this is not.
    """
    window = options.get("sliding_window")
    if window is not None and key.shape[-2] > window:
        raise TargetLoadError(
            "sliding_window",
            window,
            f"this context has {key.shape[-2]} tokens; keep prompt and answer within the window",
        )
    for option in ("softcap", "s_aux"):
        if options.get(option) is not None:
            raise TargetLoadError(
                option, "set", "choose a target with plain softmax attention; this one has not"
            )
    rows, heads, new, head_dim = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(rows, key.shape[1], groups * new, head_dim)
    if attention_mask is None:  # a plain pass of the model, without our cache
        seen = key.shape[-2]
        causal = torch.ones(new, seen, dtype=torch.bool, device=query.device).tril(seen - new)
        attention_mask = causal.expand(rows, 1, new, seen)
    mask = attention_mask[..., : key.shape[-2]].repeat(1, 1, groups, 1)
    out = nn.functional.scaled_dot_product_attention(
        folded, key, value, attn_mask=mask, scale=scaling
    )
    return out.reshape(rows, heads, new, head_dim).transpose(1, 2), None


def register_attention() -> None:
    """Make :func:`grouped_attention` known to Transformers under ``ATTENTION_NAME``."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, grouped_attention)


class RaggedCache:
    """Key-value cache for rows of different length: the entry of position p lies at index p.

    Rejected draft tokens need no cropping: the next tokens of that row have the same positions
    and overwrite them, and the mask never shows an entry beyond the query's own position.

    Args:
        slots: number of requests held at once.
        capacity: longest sequence, in tokens, of a slot.

    Raises:
        ConfigurationError: no slot or no capacity.
    """

    is_compileable = False

    def __init__(self, slots: int, capacity: int) -> None:
        for name, value in (("slots", slots), ("capacity", capacity)):
            if value < 1:
                raise ConfigurationError(name, value, "give 1 or more")
        self.slots = slots
        self.capacity = capacity
        self._keys: dict[int, Tensor] = {}  # layer -> [slots, capacity, kv_heads, head_dim]
        self._values: dict[int, Tensor] = {}
        self._rows: Tensor | None = None  # [R]
        self._positions: Tensor | None = None  # [R, Q]
        self._visible = 0

    def begin(self, rows: Tensor, positions: Tensor) -> int:
        """Say which slots and positions the next forward pass writes; returns S.

        Raises:
            ConfigurationError: a slot that does not exist, or a position beyond the capacity.
        """
        visible = int(positions.max()) + 1
        if visible > self.capacity:
            raise ConfigurationError(
                "capacity",
                self.capacity,
                f"a sequence reached {visible} tokens; build the cache with more capacity",
            )
        if int(rows.min()) < 0 or int(rows.max()) >= self.slots:
            raise ConfigurationError(
                "rows", rows.tolist(), f"give slots from 0 to {self.slots - 1}"
            )
        self._rows, self._positions, self._visible = rows, positions, visible
        return visible

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store [R, kv_heads, Q, head_dim] and return all that the rows can see, up to S."""
        if self._rows is None or self._positions is None:
            raise RuntimeError("RaggedCache.begin must come before the forward pass")
        if layer_idx not in self._keys:
            for store, states in ((self._keys, key_states), (self._values, value_states)):
                shape = (self.slots, self.capacity, states.shape[1], states.shape[3])
                store[layer_idx] = states.new_zeros(shape)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        index = self._rows[:, None]
        keys[index, self._positions] = key_states.transpose(1, 2)
        values[index, self._positions] = value_states.transpose(1, 2)
        if len(self._rows) == self.slots and bool((self._rows.diff() == 1).all()):
            seen_keys, seen_values = keys[:, : self._visible], values[:, : self._visible]
        else:
            seen_keys = keys[self._rows, : self._visible]
            seen_values = values[self._rows, : self._visible]
        return seen_keys.transpose(1, 2), seen_values.transpose(1, 2)

    # Transformers asks a cache for these before it builds a mask; ours comes ready made.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """S of the pass that was begun."""
        return self._visible

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """S, and where the keys begin."""
        return self._visible, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Nothing: positions are given to every pass."""
        return 0
