"""Saved drafters: DeepSpec's names, the way back, and every kind of damage by its name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from calib.errors import ConfigurationError, FormatError, InvalidInputError, TargetLoadError
from heads.checkpoints import load_drafter, read_configuration, save_drafter
from heads.drafter import Drafter
from tests.heads.tiny_models import tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target()
SUBSET = (0, 3, 4, 9, 11, 20, 29, 33, 40)
TENSOR = dict[str, Tensor]


def rounded(drafter: Drafter) -> TENSOR:
    """The drafter's weights as bf16 keeps them."""
    return {
        name: value.bfloat16().float() if value.is_floating_point() else value
        for name, value in drafter.state_dict().items()
    }


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"markov_head_type": "gated"},
        {"markov_head_type": "rnn"},
        {"markov_rank": 0},
        {"draft_vocabulary": SUBSET},
    ],
    ids=lambda k: "-".join(map(str, k)) or "vanilla",
)
def test_the_way_there_and_back(tmp_path: Path, kind: dict[str, Any]) -> None:
    drafter = tiny_drafter(TARGET, **kind)
    save_drafter(drafter, tmp_path)
    loaded = load_drafter(tmp_path, TARGET)
    assert loaded.configuration == drafter.configuration == read_configuration(tmp_path)
    state = loaded.state_dict()
    for name, value in rounded(drafter).items():
        assert torch.equal(state[name], value), name
    assert loaded.draft_to_target.tolist() == drafter.draft_to_target.tolist()
    assert not loaded.training
    hidden = torch.randn(2, 32)
    assert torch.equal(loaded.base_logits(hidden), drafter.base_logits(hidden))
    assert torch.equal(loaded.target_embedding, drafter.target_embedding)


def test_float32_keeps_every_bit(tmp_path: Path) -> None:
    drafter = tiny_drafter(TARGET)
    save_drafter(drafter, tmp_path, dtype=torch.float32)
    assert load_drafter(tmp_path, TARGET).weights_digest() == drafter.weights_digest()


def test_names_types_and_what_is_left_out(tmp_path: Path) -> None:
    save_drafter(tiny_drafter(TARGET, markov_head_type="gated", layers=1), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    layer = {
        *(f"self_attn.{p}_proj.weight" for p in "qkvo"),
        *(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    }
    assert set(tensors) == {
        "norm.weight",
        "fc.weight",
        "hidden_norm.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
        "markov_head.gate_proj.weight",
        "markov_head.gate_proj.bias",
        "confidence_head.proj.weight",
        "confidence_head.proj.bias",
        *(f"layers.0.{name}" for name in layer),
    }
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    save_drafter(tiny_drafter(TARGET, draft_vocabulary=SUBSET), tmp_path)
    offsets = load_file(tmp_path / "model.safetensors")["d2t"]
    assert offsets.dtype == torch.int64
    assert (offsets + torch.arange(9)).tolist() == list(SUBSET)


def test_the_configuration_has_deepspecs_keys(tmp_path: Path) -> None:
    extra = {"steps": 12, "losses": [0.1, 0.9]}
    digest = save_drafter(tiny_drafter(TARGET), tmp_path, extra=extra, num_target_layers=3)
    values = json.loads((tmp_path / "config.json").read_text())
    expected = {
        "architectures": ["LlamaDSparkModel"],
        "block_size": 3,
        "num_target_layers": 3,
        "target_layer_ids": [0, 2],
        "mask_token_id": 0,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "markov_rank": 4,
        "markov_head_type": "vanilla",
        "draft_vocab_size": 41,
        "vocab_size": 41,
        "sample_from_anchor": True,
        "dtype": "bfloat16",
    }
    assert {key: values[key] for key in expected} == expected
    own = values["dspark_calib"]
    assert own["left_to_target"] == ["embed_tokens.weight", "lm_head.weight"]
    assert own["provenance"] == extra
    data = (tmp_path / "model.safetensors").read_bytes()
    assert own["weights_sha256"] == digest == hashlib.sha256(data).hexdigest()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first = save_drafter(tiny_drafter(TARGET), tmp_path / "a")
    assert save_drafter(tiny_drafter(TARGET), tmp_path / "b") == first
    files = [(tmp_path / folder / "config.json").read_bytes() for folder in "ab"]
    assert files[0] == files[1]


def test_provenance_must_be_plain(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"extra\.loss"):
        save_drafter(tiny_drafter(TARGET), tmp_path, extra={"loss": float("nan")})


# ---- checkpoints of other makers ----


def foreign(folder: Path, change: Any = None, **configuration: Any) -> Path:
    """A checkpoint without this project's key, after ``change`` was applied to its tensors."""
    save_drafter(tiny_drafter(TARGET, draft_vocabulary=SUBSET), folder)
    values = json.loads((folder / "config.json").read_text())
    del values["dspark_calib"]
    (folder / "config.json").write_text(json.dumps({**values, **configuration}))
    tensors = load_file(folder / "model.safetensors")
    if change is not None:
        tensors = change(tensors) or tensors
        save_file(tensors, folder / "model.safetensors")
    return folder


def expected_weights() -> TENSOR:
    return rounded(tiny_drafter(TARGET, draft_vocabulary=SUBSET))


def test_a_model_prefix_is_accepted(tmp_path: Path) -> None:
    folder = foreign(tmp_path, lambda tensors: {f"model.{n}": t for n, t in tensors.items()})
    state = load_drafter(folder, TARGET).state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected_weights().items())


def with_target(tensors: TENSOR, embedding: Tensor, head: Tensor) -> TENSOR:
    extra = {"t2d": torch.ones(41, dtype=torch.bool), "rotary_emb.inv_freq": torch.ones(4)}
    return {**tensors, **extra, "embed_tokens.weight": embedding, "lm_head.weight": head}


def test_copies_of_the_targets_tensors_are_checked_and_left(tmp_path: Path) -> None:
    embedding, head = TARGET.embed_tokens.weight.bfloat16(), TARGET.lm_head.weight.bfloat16()
    folder = foreign(tmp_path, lambda tensors: with_target(tensors, embedding, head))
    assert torch.equal(load_drafter(folder, TARGET).target_embedding, TARGET.embed_tokens.weight)
    other = tiny_target(seed=9)
    with pytest.raises(TargetLoadError, match=r"embed_tokens\.weight.*another target"):
        load_drafter(folder, other)
    foreign(tmp_path, lambda tensors: with_target(tensors, embedding, head[:40]))
    with pytest.raises(TargetLoadError, match=r"lm_head\.weight: got \(40, 32\)"):
        load_drafter(folder, TARGET)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: {n: v for n, v in t.items() if n != "fc.weight"}, r"no fc\.weight"),
        (lambda t: {n: v for n, v in t.items() if "confidence" not in n}, "confidence_head"),
        (lambda t: {n: v for n, v in t.items() if n != "d2t"}, "d2t: got None"),
        (lambda t: {**t, "layers.2.mlp.up_proj.weight": torch.ones(2, 2)}, r"also layers\.2"),
        (lambda t: {**t, "norm.weight": torch.ones(31)}, r"norm\.weight: got .*\(31,\)"),
        (
            lambda t: {**t, "markov_head.markov_w2.weight": torch.ones(41, 4)},
            r"markov_w2.*\[9, 4\]",
        ),
        (lambda t: {**t, "norm.weight": torch.full((32,), float("nan"))}, "NaN"),
        (lambda t: {**t, "norm.weight": torch.ones(32, dtype=torch.int64)}, "int64"),
        (lambda t: {**t, "d2t": torch.zeros(8, dtype=torch.int64)}, "draft_to_target"),
        (lambda t: {**t, "d2t": torch.full((9,), 40)}, "draft_to_target"),
        (lambda t: {**t, "d2t": torch.zeros(9)}, "d2t: got .*float32"),
    ],
)
def test_wrong_tensors_are_named(tmp_path: Path, change: Any, named: str) -> None:
    folder = foreign(tmp_path, change)
    with pytest.raises((TargetLoadError, ConfigurationError), match=named):
        load_drafter(folder, TARGET)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"vocab_size": 42}, "vocab_size"),
        ({"hidden_size": 64}, "hidden_size"),
        ({"target_layer_ids": [0, 3]}, "target_layer_ids"),
        ({"num_hidden_layers": 3}, "weights"),
        ({"markov_rank": 8}, "markov_head.markov_w1.weight"),
        ({"markov_head_type": "rnn"}, "weights"),
        ({"block_size": None}, "block_size"),
        ({"markov_rank": 0}, "markov_rank"),
    ],
)
def test_configurations_of_something_else_are_named(
    tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    folder = foreign(tmp_path, **changes)
    with pytest.raises((TargetLoadError, ConfigurationError)) as caught:
        load_drafter(folder, TARGET)
    assert caught.value.field == field


# ---- damage ----


@pytest.mark.parametrize("kept", [0, 4, 100, -7])
def test_truncated_weights_are_refused(tmp_path: Path, kept: int) -> None:
    for folder in (tmp_path / "own", tmp_path / "foreign"):
        if folder.name == "own":
            save_drafter(tiny_drafter(TARGET), folder)
        else:
            foreign(folder)
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(FormatError, match=r"model\.safetensors"):
            load_drafter(folder, TARGET)


def test_one_wrong_bit_is_noticed(tmp_path: Path) -> None:
    save_drafter(tiny_drafter(TARGET), tmp_path)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="not the weights"):
        load_drafter(tmp_path, TARGET)


def test_weights_of_another_saving_are_noticed(tmp_path: Path) -> None:
    save_drafter(tiny_drafter(TARGET, seed=1), tmp_path / "a")
    save_drafter(tiny_drafter(TARGET, seed=2), tmp_path / "b")
    other = (tmp_path / "b" / "model.safetensors").read_bytes()
    (tmp_path / "a" / "model.safetensors").write_bytes(other)
    with pytest.raises(FormatError, match="not the weights"):
        load_drafter(tmp_path / "a", TARGET)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TargetLoadError, match=r"config\.json"):
        load_drafter(tmp_path, TARGET)
    save_drafter(tiny_drafter(TARGET), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(TargetLoadError, match=r"model\.safetensors"):
        load_drafter(tmp_path, TARGET)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(FormatError, match=r"config\.json"):
        read_configuration(tmp_path)


# ---- a confidence head for a drafter that has none ----


def test_a_new_confidence_head(tmp_path: Path) -> None:
    without = foreign(
        tmp_path / "without",
        lambda t: {n: v for n, v in t.items() if "confidence" not in n},
        enable_confidence_head=False,
    )
    assert load_drafter(without, TARGET).confidence_head is None
    with_head = foreign(tmp_path / "with")
    for folder in (without, with_head):
        drafter = load_drafter(folder, TARGET, new_confidence_head=True)
        assert drafter.configuration.enable_confidence_head
        assert drafter.configuration.confidence_head_with_markov
        assert drafter.confidence_head is not None
        assert not drafter.confidence_head.proj.weight.any()
        state = drafter.state_dict()
        for name, value in expected_weights().items():
            assert "confidence" in name or torch.equal(state[name], value)
    save_drafter(drafter, tmp_path / "again")
    assert load_drafter(tmp_path / "again", TARGET).confidence_head is not None
