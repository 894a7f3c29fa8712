"""Starting a drafter from its target.

A drafter for a Llama-shaped target starts from copies of the target's last layers, because those
already turn hidden states into next-token logits; from random layers the same quality takes far
more blocks. Where the shapes do not fit, layers start at random and the caller is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calib.errors import TargetLoadError
from heads.configuration import DrafterConfiguration, MarkovHeadType
from heads.drafter import Drafter
from heads.targets import HuggingFaceTarget


def configuration_for(
    target: HuggingFaceTarget,
    *,
    gamma: int,
    layers: int,
    draft_vocab_size: int,
    markov_rank: int,
    markov_head_type: MarkovHeadType = "vanilla",
) -> DrafterConfiguration:
    """A drafter shaped like its target: same width, heads, norms and rotary base.

    With ``markov_rank`` 0 the confidence head reads the hidden state alone.

    Raises:
        ConfigurationError: an option out of range.
        TargetLoadError: the target's configuration lacks what a drafter is shaped after.
    """
    config: Any = target.config
    heads = _number(target, "num_attention_heads")
    pad = getattr(config, "pad_token_id", None)
    return DrafterConfiguration(
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=_number(target, "intermediate_size", 4 * target.hidden_size),
        num_attention_heads=heads,
        num_key_value_heads=_number(target, "num_key_value_heads", heads),
        head_dim=_number(target, "head_dim", target.hidden_size // heads),
        num_hidden_layers=layers,
        target_layer_ids=target.layer_ids,
        block_size=gamma,
        mask_token_id=int(pad if pad is not None else 0),
        markov_rank=markov_rank,
        markov_head_type=markov_head_type,
        confidence_head_with_markov=markov_rank > 0,
        rms_norm_eps=float(getattr(config, "rms_norm_eps", None) or 1e-6),
        rope_theta=_rope_theta(config),
        qk_norm=any(name.endswith("q_norm.weight") for name in _layer_weights(target, -1)),
        attention_bias=bool(getattr(config, "attention_bias", False)),
    )


@torch.no_grad()
def initialize_from_target(drafter: Drafter, target: HuggingFaceTarget, seed: int) -> list[str]:
    """Fill a new drafter's weights in place; returns what starts at random for want of a source.

    Args:
        drafter: all its weights are written.
        target: whose last layers are copied, the last draft layer from the last layer.
        seed: of everything random.
    """
    generator = torch.Generator().manual_seed(seed)
    count = drafter.configuration.num_hidden_layers
    missed: list[str] = []
    for index, layer in enumerate(drafter.model.layers):
        source = _layer_weights(target, index - count)
        for name, value in layer.state_dict().items():
            if name in source and source[name].shape == value.shape:
                value.copy_(source[name])
            else:
                missed.append(f"layers.{index}.{name}")
                _randomize(name, value, generator)
    _start_fusion(drafter, _layer_weights(target, -count))
    _start_heads(drafter, generator)
    return missed


def _number(target: HuggingFaceTarget, name: str, default: int | None = None) -> int:
    value = getattr(target.config, name, None)
    if value is None:
        value = default
    if not isinstance(value, int):
        raise TargetLoadError(
            name, value, f"choose a target whose configuration states it; {target.name} does not"
        )
    return value


def _rope_theta(config: Any) -> float:
    rope = getattr(config, "rope_parameters", None)
    stated = rope.get("rope_theta") if isinstance(rope, dict) else None
    return float(stated or getattr(config, "rope_theta", None) or 10_000.0)


def _layer_weights(target: HuggingFaceTarget, index: int) -> Mapping[str, Tensor]:
    """Weights of a target layer, counted from the end as −1, −2, …; empty where there is none."""
    layers = getattr(target.decoder, "layers", None)
    if layers is None or not -len(layers) <= index:
        return {}
    weights: Mapping[str, Tensor] = layers[index].state_dict()
    return weights


def _randomize(name: str, value: Tensor, generator: torch.Generator) -> None:
    """Biases at 0, norms at 1, matrices normal with variance one over their inputs."""
    if name.endswith("bias"):
        value.zero_()
    elif value.dim() == 1:
        value.fill_(1.0)
    else:
        value.normal_(0.0, value.shape[1] ** -0.5, generator=generator)


def _start_fusion(drafter: Drafter, first_copied: Mapping[str, Tensor]) -> None:
    """Let the fused context start as the hidden state that the first copied layer would read."""
    width = drafter.configuration.hidden_size
    weight = drafter.model.fc.weight
    weight.zero_()
    # The last id is the one after the final norm; the one before it lies nearest in depth and
    # scale to what the copied layers saw.
    nearest = max(0, len(drafter.configuration.target_layer_ids) - 2)
    weight[:, nearest * width : (nearest + 1) * width] = torch.eye(width)
    own = drafter.model.hidden_norm.weight
    norm = first_copied.get("input_layernorm.weight")
    if norm is not None and norm.shape == own.shape:
        own.copy_(norm)


def _start_heads(drafter: Drafter, generator: torch.Generator) -> None:
    """W1 starts as a random projection of the token embeddings, W2 at zero: no bias at first,
    but codes in which like tokens lie together from the first step on."""
    head = drafter.markov_head
    if head is not None:
        embedding = drafter.target_embedding
        projection = torch.randn(embedding.shape[1], head.rank, generator=generator)
        codes = embedding.float() @ projection
        head.markov_w1.weight.copy_(codes / codes.std())
        head.markov_w2.weight.zero_()
        for name, value in head.named_parameters():
            if "_proj." in name:
                _randomize(name, value, generator)
    if drafter.confidence_head is not None:
        drafter.confidence_head.proj.weight.zero_()
        drafter.confidence_head.proj.bias.zero_()
