"""Real but tiny models in memory: a Llama target with random weights, and drafters over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from heads.configuration import DrafterConfiguration
from heads.drafter import Drafter
from heads.initialization import configuration_for
from heads.prompts import Prompt
from heads.responses import Response
from heads.targets import HuggingFaceTarget

torch.set_num_threads(1)


class CharacterTokenizer:
    """One token a character, without a chat template."""

    def __init__(self, vocab_size: int, eos_token_id: int | None = None) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1 + ord(c) % (self.vocab_size - 1) for c in text]}


def tiny_target(
    *,
    vocab_size: int = 41,
    layers: int = 3,
    layer_ids: Sequence[int] = (0, 2),
    eos: int | None = None,
    seed: int = 0,
    sharpness: float = 6.0,
) -> HuggingFaceTarget:
    """A Llama whose distributions are peaked enough to tell tokens apart."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharpness / 0.25 / 32**0.5 / 4)
    return HuggingFaceTarget(model, CharacterTokenizer(vocab_size, eos), "tiny", layer_ids)


def tiny_configuration(target: HuggingFaceTarget, **changes: Any) -> DrafterConfiguration:
    """A two-layer drafter of γ = 3 with a Markov head of rank 4."""
    options = {
        "gamma": 3,
        "layers": 2,
        "draft_vocab_size": target.vocab_size,
        "markov_rank": 4,
        **changes,
    }
    return configuration_for(target, **options)


def tiny_drafter(
    target: HuggingFaceTarget,
    *,
    draft_vocabulary: Sequence[int] | None = None,
    seed: int = 1,
    confident: float = 2.0,
    **changes: Any,
) -> Drafter:
    """A drafter with random weights everywhere, heads included.

    Args:
        draft_vocabulary: target ids it can propose; None for all.
        confident: spread of the confidence head's weights.
    """
    size = target.vocab_size if draft_vocabulary is None else len(draft_vocabulary)
    configuration = tiny_configuration(target, draft_vocab_size=size, **changes)
    return random_drafter(configuration, target, draft_vocabulary, seed=seed, confident=confident)


def random_drafter(
    configuration: DrafterConfiguration,
    target: HuggingFaceTarget,
    draft_vocabulary: Sequence[int] | None = None,
    *,
    seed: int = 1,
    confident: float = 2.0,
) -> Drafter:
    """A drafter of any configuration with seeded random weights."""
    mapping = None if draft_vocabulary is None else torch.tensor(draft_vocabulary)
    drafter = Drafter(configuration, target.embed_tokens.weight, target.lm_head.weight, mapping)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in drafter.named_parameters():
            if value.dim() > 1:
                value.normal_(0.0, value.shape[1] ** -0.5, generator=generator)
            elif "norm" in name:
                value.uniform_(0.5, 1.5, generator=generator)
            else:
                value.normal_(0.0, 0.3, generator=generator)
        if drafter.confidence_head is not None:
            drafter.confidence_head.proj.weight.mul_(confident)
    return drafter.eval()


def prompts(count: int, domains: Sequence[str] = ("chat", "code", "math")) -> list[Prompt]:
    """Different short prompts, domains in turn."""
    return [
        Prompt(
            f"{chr(97 + i % 26)}{chr(97 + i // 26)}{'x' * (i % 5)}", domains[i % len(domains)], "t"
        )
        for i in range(count)
    ]


def plain_logits(target: HuggingFaceTarget, tokens: Sequence[int] | Tensor) -> Tensor:
    """Logits of one sequence by the model's own forward pass without a cache; [S, V].

    The attention is Transformers' own eager one, so the comparison shares no code with ours.
    """
    ids = torch.as_tensor(tokens).long()[None]
    model = target.model
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            logits: Tensor = model(ids, use_cache=False).logits[0].float()
    finally:
        model.set_attn_implementation(ours)
    return logits


def response_of(
    target: HuggingFaceTarget,
    tokens: Sequence[int],
    prompt_length: int,
    *,
    temperature: float = 1.0,
    domain: str = "chat",
) -> Response:
    """A stored response with features computed by a plain forward pass."""
    ids = torch.tensor(tokens)[None]
    with torch.inference_mode():
        output = target.model(ids[:, :-1], output_hidden_states=True, use_cache=False)
    states = [output.hidden_states[i + 1][0] for i in target.layer_ids]
    return Response(
        tokens=ids[0].int(),
        prompt_length=prompt_length,
        features=torch.cat(states, dim=-1).half(),
        log_normalizer=torch.logsumexp(output.logits[0].float(), dim=-1),
        temperature=temperature,
        domain=domain,
        digest="0" * 64,
    )
