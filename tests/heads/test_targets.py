"""The target adapter: features, stop tokens, identity, and clear errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calib.errors import ConfigurationError, TargetLoadError
from heads import targets
from heads.ragged_attention import RaggedCache
from heads.targets import HuggingFaceTarget, default_layer_ids, load_target
from tests.heads.tiny_models import CharacterTokenizer, plain_logits, tiny_target
from tests.support.tiny_target import save_tiny_target

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_target(tmp_path_factory.mktemp("target"))


def test_a_folder_is_loaded_and_computes_what_the_model_computes(saved: Path) -> None:
    target = load_target(str(saved), layer_ids=(1, 3))
    assert target.layer_ids == (1, 3)
    assert target.vocab_size == 257
    assert target.hidden_size == 32
    assert target.eos_token_ids == frozenset({0})
    ids = target.encode_chat("ab ")
    assert len(ids) == 3
    output = target.forward(
        torch.tensor([ids]), torch.arange(3)[None], torch.tensor([0]), RaggedCache(1, 3)
    )
    assert (target.logits(output.last_hidden)[0] - plain_logits(target, ids)).abs().max() < 2e-4


def test_features_are_numbered_as_deepspec_does() -> None:
    target = tiny_target(layer_ids=(-1, 0, 2))
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    output = target.forward(ids, torch.arange(5)[None], torch.tensor([0]), RaggedCache(1, 5))
    with torch.inference_mode():
        states = target.model(ids, output_hidden_states=True, use_cache=False).hidden_states
    expected = torch.cat([states[0], states[1], states[3]], dim=-1)
    assert (output.features - expected).abs().max() < 1e-4
    assert torch.equal(output.features[..., -32:], output.last_hidden)  # the last, after the norm
    embedding = target.embed_tokens.weight[ids[0]]
    assert torch.equal(output.features[0, :, :32], embedding)


def test_without_layers_there_are_no_features() -> None:
    target = tiny_target(layer_ids=())
    output = target.forward(
        torch.tensor([[1]]), torch.tensor([[0]]), torch.tensor([0]), RaggedCache(1, 1)
    )
    assert output.features.shape == (1, 1, 0)
    assert output.last_hidden.shape == (1, 1, 32)


def test_stop_tokens_come_from_everywhere() -> None:
    target = tiny_target(eos=3)
    target.config.eos_token_id = [3, 5]
    target.model.generation_config.eos_token_id = 7
    target.tokenizer.eos_token_id = 9
    assert target.eos_token_ids == frozenset({3, 5, 7, 9})
    assert tiny_target().eos_token_ids == frozenset()


def test_soft_capped_logits() -> None:
    target = tiny_target()
    hidden = torch.randn(4, 32)
    plain = target.logits(hidden)
    target.config.final_logit_softcapping = 2.0
    assert torch.allclose(target.logits(hidden), 2.0 * torch.tanh(plain / 2.0))


def test_weights_digest_is_the_weights() -> None:
    assert tiny_target().weights_digest() == tiny_target().weights_digest()
    assert tiny_target().weights_digest() != tiny_target(seed=1).weights_digest()


def test_chat_templates_are_used_where_there_is_one() -> None:
    class Templated(CharacterTokenizer):
        chat_template = "yes"

        def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool) -> Any:
            assert add_generation_prompt
            assert messages == [{"role": "user", "content": "hi"}]
            return {"input_ids": [5, 6, 7]}

    target = tiny_target()
    assert target.encode_chat("hi") == [1 + ord("h") % 40, 1 + ord("i") % 40]
    target.tokenizer = Templated(41)
    assert target.encode_chat("hi") == [5, 6, 7]
    target.tokenizer = None
    with pytest.raises(TargetLoadError, match="tokenizer"):
        target.encode_chat("hi")


@pytest.mark.parametrize("layer_ids", [(3,), (-2,), (1, 0), (1, 1)])
def test_layers_that_do_not_exist_are_refused(layer_ids: tuple[int, ...]) -> None:
    with pytest.raises(TargetLoadError, match="layer_ids"):
        tiny_target(layer_ids=layer_ids)


def test_default_layers_are_spread_and_end_with_the_last() -> None:
    assert default_layer_ids(30) == (7, 12, 18, 24, 29)
    assert default_layer_ids(3) == (0, 1, 2)
    assert default_layer_ids(30, 1) == (29,)
    for layers in range(1, 70):
        for count in range(1, 12):
            ids = default_layer_ids(layers, count)
            assert list(ids) == sorted(set(ids))
            assert len(ids) == min(layers, count)
            assert ids[-1] == layers - 1
    with pytest.raises(ConfigurationError, match="layers"):
        default_layer_ids(0)


# ---- what cannot be loaded ----


@pytest.mark.parametrize(
    "spec", ["no/such-model", "./missing.gguf", "package:no_such_package", "package:json"]
)
def test_missing_targets_say_what_to_give(spec: str) -> None:
    with pytest.raises(TargetLoadError) as caught:
        load_target(spec)
    assert caught.value.field == "target"
    assert caught.value.value == spec
    assert caught.value.remedy


def test_damaged_folders_are_refused(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TargetLoadError, match="empty"):
        load_target(str(tmp_path / "empty"))
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in saved.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(TargetLoadError, match="damaged"):
        load_target(str(damaged))
    (damaged / "config.json").write_text("{")
    with pytest.raises(TargetLoadError, match="damaged"):
        load_target(str(damaged))


def test_a_truncated_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(TargetLoadError, match=r"model\.gguf"):
        load_target(str(path))


def test_packages_are_found_without_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "heavy_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TargetLoadError, match=r"holds no \.gguf"):
        load_target("package:heavy_weights")
    (package / "b.gguf").write_bytes(b"")
    (package / "a.gguf").write_bytes(b"")
    assert targets._package_gguf("package:heavy_weights") == package / "a.gguf"


class WithoutHead:
    """Something that Transformers can load and that has no language-model head."""

    config = SimpleNamespace(num_hidden_layers=1, vocab_size=8)

    def eval(self) -> WithoutHead:
        return self

    def requires_grad_(self, flag: bool) -> WithoutHead:
        return self


def test_models_of_another_kind_are_refused() -> None:
    with pytest.raises(TargetLoadError, match="decoder-only"):
        HuggingFaceTarget(WithoutHead(), None, "bert")


def test_a_family_the_adapter_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here: logits that the model scales and the adapter does not."""
    target = tiny_target()
    model = target.model
    plain = type(model).forward

    def scaled(self: Any, *arguments: Any, **options: Any) -> Any:
        output = plain(self, *arguments, **options)
        output.logits = output.logits * 0.3
        return output

    monkeypatch.setattr(type(model), "forward", scaled)
    with pytest.raises(TargetLoadError, match="total variation"):
        targets._checked_target(model, None, "scaled", (2,))
    monkeypatch.undo()
    assert targets._checked_target(model, None, "plain", (2,)).layer_ids == (2,)


def test_a_failure_inside_the_model_is_named() -> None:
    model = tiny_target().model
    model.model.layers[0].self_attn.q_proj = torch.nn.Linear(5, 32, bias=False)
    with pytest.raises(TargetLoadError, match="RuntimeError"):
        targets._checked_target(model, None, "broken", (2,))
