"""Starting from the target: what is copied, what starts at random, and how alike it begins."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calib.errors import ConfigurationError, TargetLoadError
from heads.drafter import Drafter
from heads.initialization import configuration_for, initialize_from_target
from heads.targets import HuggingFaceTarget
from tests.heads.tiny_models import tiny_configuration, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target()


def fresh(target: HuggingFaceTarget = TARGET, **changes: Any) -> Drafter:
    configuration = tiny_configuration(target, **changes)
    return Drafter(configuration, target.embed_tokens.weight, target.lm_head.weight)


def test_the_drafter_is_shaped_like_its_target() -> None:
    configuration = configuration_for(
        TARGET, gamma=5, layers=2, draft_vocab_size=41, markov_rank=4, markov_head_type="rnn"
    )
    assert configuration.block_size == 5
    assert configuration.hidden_size == 32
    assert configuration.num_key_value_heads == 2
    assert configuration.head_dim == 8
    assert configuration.target_layer_ids == (0, 2)
    assert configuration.rope_theta == 10_000.0
    assert configuration.mask_token_id == 0
    assert configuration.markov_head_type == "rnn"
    assert not configuration.qk_norm
    assert configuration.confidence_head_with_markov


def test_without_a_markov_head_confidence_reads_the_hidden_state() -> None:
    assert not tiny_configuration(TARGET, markov_rank=0).confidence_head_with_markov


def test_the_last_layers_are_copied() -> None:
    drafter = fresh()
    assert initialize_from_target(drafter, TARGET, 0) == []
    for index in range(2):
        source = TARGET.decoder.layers[1 + index].state_dict()
        for name, value in drafter.model.layers[index].state_dict().items():
            assert torch.equal(value, source[name]), name
    fusion = drafter.model.fc.weight
    assert torch.equal(fusion[:, :32], torch.eye(32))
    assert not fusion[:, 32:].any()
    norm = TARGET.decoder.layers[1].input_layernorm.weight
    assert torch.equal(drafter.model.hidden_norm.weight, norm)


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_heads_start_without_a_say(kind: str) -> None:
    drafter = fresh(markov_head_type=kind)
    initialize_from_target(drafter, TARGET, 0)
    assert drafter.markov_head is not None
    previous, hidden = torch.arange(7)[None], torch.randn(1, 7, 32)
    assert not drafter.markov_head.block(previous, hidden).any()
    assert drafter.markov_head.markov_w1.weight.std().item() == pytest.approx(1.0, abs=1e-4)
    assert drafter.confidence_head is not None
    assert not drafter.confidence_head.proj.weight.any()


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_the_seed_decides_everything_random(kind: str) -> None:
    def start(seed: int, torch_seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(torch_seed)
        drafter = fresh(markov_head_type=kind, layers=4)
        assert initialize_from_target(drafter, TARGET, seed)
        return {name: value.clone() for name, value in drafter.state_dict().items()}

    one, same, other = start(0, 1), start(0, 2), start(1, 1)
    assert all(torch.equal(value, same[name]) for name, value in one.items())
    assert not torch.equal(
        one["markov_head.markov_w1.weight"], other["markov_head.markov_w1.weight"]
    )


def test_more_layers_than_the_target_has_start_at_random_and_are_named() -> None:
    drafter = fresh(layers=4)
    missed = initialize_from_target(drafter, TARGET, 0)
    assert {name.split(".")[1] for name in missed} == {"0"}
    assert "layers.0.self_attn.q_proj.weight" in missed
    first = TARGET.decoder.layers[0].state_dict()
    assert torch.equal(
        drafter.model.layers[1].state_dict()["mlp.up_proj.weight"], first["mlp.up_proj.weight"]
    )
    assert (drafter.model.layers[0].state_dict()["input_layernorm.weight"] == 1).all()


def test_other_shapes_start_at_random_and_are_named() -> None:
    values = {**tiny_configuration(TARGET).to_dict(), "intermediate_size": 20}
    from heads.configuration import DrafterConfiguration

    configuration = DrafterConfiguration.from_dict(values)
    drafter = Drafter(configuration, TARGET.embed_tokens.weight, TARGET.lm_head.weight)
    missed = initialize_from_target(drafter, TARGET, 0)
    assert {name.split(".", 2)[2] for name in missed} == {
        f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")
    }


def test_a_target_that_does_not_state_its_shape_is_refused() -> None:
    bare: Any = SimpleNamespace(
        config=SimpleNamespace(num_hidden_layers=2), vocab_size=41, hidden_size=32, name="odd"
    )
    with pytest.raises(TargetLoadError, match="num_attention_heads"):
        configuration_for(bare, gamma=3, layers=2, draft_vocab_size=41, markov_rank=4)


def test_a_target_without_context_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="target_layer_ids"):
        tiny_configuration(tiny_target(layer_ids=()))
