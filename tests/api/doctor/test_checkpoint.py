"""Heads and widths of a checkpoint, from names and shapes alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from api.doctor.checkpoint import checkpoint_findings
from api.doctor.findings import Level
from calib.errors import FormatError

DENSE = {
    "markov_head.markov_w1.weight": [100, 4],
    "markov_head.markov_w2.weight": [100, 4],
    "confidence_head.proj.weight": [1, 12],
    "confidence_head.proj.bias": [1],
    "layers.0.mlp.up_proj.weight": [8, 8],
}
V4 = {
    "mtp.0.markov_head.markov_w1.weight": [100, 4],
    "mtp.1.markov_head.markov_w2.weight": [100, 4],
    "mtp.1.confidence_head.proj.weight": [1, 12],
}


def written(folder: Path, shapes: dict[str, list[int]], **options: Any) -> Path:
    header: dict[str, Any] = {
        name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
        for name, shape in shapes.items()
    }
    data = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8, "block_size": 7, **options}))
    return folder


def levels(path: Path, gamma: int | None = 7) -> dict[str, Level]:
    return {entry.check: entry.level for entry in checkpoint_findings(path, gamma=gamma)}


@pytest.mark.parametrize("prefix", ["", "model.", "language_model.model.dspark."])
def test_dense_names(tmp_path: Path, prefix: str) -> None:
    """DeepSpec's and speculators' names, and MiniMax's."""
    folder = written(tmp_path, {f"{prefix}{name}": shape for name, shape in DENSE.items()})
    wanted = {"confidence_head": Level.OK, "features": Level.OK, "gamma": Level.OK}
    assert levels(folder) == wanted
    assert levels(folder / "model.safetensors") == wanted


def test_v4_has_no_bias_and_its_own_key(tmp_path: Path) -> None:
    folder = written(tmp_path, V4, block_size=None, dspark_block_size=5)
    found = list(checkpoint_findings(folder, gamma=5))
    assert "without bias" in found[0].text
    assert {entry.level for entry in found} == {Level.OK}


@pytest.mark.parametrize("shape", [[], [12], [1, 1, 12]])
def test_a_head_of_another_shape_is_no_drafter(tmp_path: Path, shape: list[int]) -> None:
    folder = written(tmp_path, DENSE | {"confidence_head.proj.weight": shape})
    assert levels(folder) == {"heads": Level.FAIL}


@pytest.mark.parametrize("size", [True, 0, "7", 7.0])
def test_what_is_no_count_is_no_block_size(tmp_path: Path, size: Any) -> None:
    assert levels(written(tmp_path, DENSE, block_size=size))["gamma"] is Level.UNKNOWN


def test_a_checkpoint_without_heads(tmp_path: Path) -> None:
    markov = {name: shape for name, shape in DENSE.items() if "confidence" not in name}
    assert levels(written(tmp_path, markov))["confidence_head"] is Level.FAIL
    assert levels(written(tmp_path, {"lm_head.weight": [9, 9]})) == {"heads": Level.FAIL}


@pytest.mark.parametrize(
    ("options", "gamma", "level"),
    [
        ({}, 7, Level.OK),
        ({}, 6, Level.OK),  # one draft less, where the anchor is not sampled from
        ({"sample_from_anchor": True}, 6, Level.WARN),
        ({}, 3, Level.WARN),
        ({}, 9, Level.FAIL),
        ({}, None, Level.UNKNOWN),
        ({"block_size": None}, 7, Level.UNKNOWN),
        ({"block_size": None, "dflash_config": {"block_size": 7}}, 7, Level.OK),
    ],
)
def test_gamma_is_the_engines_and_the_block_size_a_hint(
    tmp_path: Path, options: dict[str, Any], gamma: int | None, level: Level
) -> None:
    assert levels(written(tmp_path, DENSE, **options), gamma)["gamma"] is level


def test_a_configuration_of_other_weights(tmp_path: Path) -> None:
    assert levels(written(tmp_path, DENSE, hidden_size=9))["features"] is Level.FAIL
    off = levels(written(tmp_path, DENSE, enable_confidence_head=False))
    assert off["confidence_head"] is Level.WARN


@pytest.mark.parametrize("data", [b"", b"short", struct.pack("<Q", 2**60), struct.pack("<Q", 9)])
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(data)
    with pytest.raises(FormatError, match="safetensors"):
        levels(file)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FormatError, match="safetensors"):
        levels(empty)
