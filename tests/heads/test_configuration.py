"""Configurations: what is refused, what DeepSpec's files leave out, and the way through JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from calib.errors import ConfigurationError
from heads.configuration import DrafterConfiguration

VALUES: dict[str, Any] = {
    "vocab_size": 50,
    "draft_vocab_size": 20,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 2,
    "target_layer_ids": [0, 2],
    "block_size": 7,
    "mask_token_id": 3,
    "markov_rank": 4,
}


def test_the_way_through_json_changes_nothing() -> None:
    configuration = DrafterConfiguration.from_dict(VALUES)
    text = json.dumps(configuration.to_dict())
    assert DrafterConfiguration.from_dict(json.loads(text)) == configuration
    assert configuration.gamma == 7
    assert configuration.target_layer_ids == (0, 2)
    assert configuration.confidence_width == 32 + 4


def test_a_deepspec_configuration_is_read() -> None:
    """The keys that DeepSpec writes, as a Qwen3 configuration of Transformers 5 carries them."""
    values = {
        "architectures": ["Qwen3DSparkModel"],
        "vocab_size": 151_936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 5,
        "num_target_layers": 36,
        "block_size": 7,
        "mask_token_id": 151_669,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "num_anchors": 512,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
        "attention_bias": False,
        "sliding_window": None,
    }
    configuration = DrafterConfiguration.from_dict(values)
    assert configuration.draft_vocab_size == 151_936
    assert configuration.rope_theta == 1_000_000
    assert configuration.qk_norm
    assert configuration.confidence_width == 2560 + 256


def test_what_a_family_leaves_out_is_filled_in() -> None:
    given = {k: v for k, v in VALUES.items() if k not in ("head_dim", "num_key_value_heads")}
    configuration = DrafterConfiguration.from_dict({**given, "draft_vocab_size": None})
    assert configuration.head_dim == 8
    assert configuration.num_key_value_heads == 4
    assert configuration.draft_vocab_size == 50
    assert not configuration.qk_norm


@pytest.mark.parametrize("missing", ["vocab_size", "hidden_size", "block_size", "target_layer_ids"])
def test_missing_keys_are_named(missing: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DrafterConfiguration.from_dict({k: v for k, v in VALUES.items() if k != missing})
    assert caught.value.field == missing


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 0),
        ("block_size", "7"),
        ("block_size", True),
        ("block_size", 7.5),
        ("draft_vocab_size", 51),
        ("num_key_value_heads", 3),
        ("head_dim", 7),
        ("target_layer_ids", []),
        ("target_layer_ids", [2, 1]),
        ("target_layer_ids", [1, 1]),
        ("target_layer_ids", [-2, 1]),
        ("target_layer_ids", 3),
        ("target_layer_ids", [1.5]),
        ("mask_token_id", 50),
        ("mask_token_id", -1),
        ("markov_rank", -1),
        ("markov_head_type", "gru"),
        ("markov_head_type", 3),
        ("rms_norm_eps", 0.0),
        ("rope_theta", float("nan")),
        ("enable_confidence_head", 1),
    ],
)
def test_wrong_values_are_named(field: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DrafterConfiguration.from_dict({**VALUES, field: value})
    assert caught.value.field == field


def test_r84_markov_fed_head_without_markov_head_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        DrafterConfiguration.from_dict({**VALUES, "markov_rank": 0})
    assert "markov_rank" in str(caught.value)
    assert "confidence_head_with_markov" in str(caught.value)
    for change in ({"confidence_head_with_markov": False}, {"enable_confidence_head": False}):
        assert DrafterConfiguration.from_dict({**VALUES, "markov_rank": 0, **change})


def test_r84_is_refused_under_optimisation_too() -> None:
    script = (
        "from heads.configuration import DrafterConfiguration\n"
        f"DrafterConfiguration.from_dict({VALUES | {'markov_rank': 0}!r})\n"
    )
    answer = subprocess.run(
        [sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    last = answer.stderr.strip().splitlines()[-1]
    assert last.startswith("calib.errors.ConfigurationError: markov_rank: got 0")
    assert "confidence_head_with_markov" in last
