"""The static table: every batch and rank has an entry, and tiles that cannot be are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from calib.errors import ConfigurationError
from heads.kernels.draft_block_configuration import (
    ARCHITECTURES,
    INTERPRETER,
    DraftBlockConfiguration,
    architecture_of,
    configuration_for,
)

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, INTERPRETER])
@pytest.mark.parametrize("w2", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_every_batch_and_rank_has_an_entry(architecture: str, w2: torch.dtype) -> None:
    for rows in (1, 2, 16, 17, 32, 33, 64, 65, 256):
        for rank in (4, 64, 192, 256, 512):
            for sums in (False, True):
                entry = configuration_for(
                    architecture,
                    rows,
                    rank=rank,
                    shard_size=151_936,
                    w2_dtype=w2,
                    log_sum_exp=sums,
                )
                assert entry.tensor_cores == (rows > 1)
                assert entry.block_r < 2 * max(rank, 16)
                assert entry.dependent == (architecture in ("sm90", "sm100"))
                covered = entry.programs(151_936) * entry.ids_a_program
                assert 0 <= covered - 151_936 < entry.ids_a_program


def test_the_vocabulary_is_read_once_for_64_rows() -> None:
    for architecture in ARCHITECTURES:
        entry = configuration_for(
            architecture, 64, rank=256, shard_size=151_936, w2_dtype=torch.bfloat16
        )
        assert entry.block_b == 64


def test_float8_is_decoded_where_the_hardware_lacks_it() -> None:
    for architecture in ARCHITECTURES:
        entry = configuration_for(
            architecture, 8, rank=256, shard_size=1000, w2_dtype=torch.float8_e4m3fn
        )
        assert entry.decode_float8 == (architecture == "sm80")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"block_v": 48}, "block_v"),
        ({"block_v": 8}, "block_v"),
        ({"block_r": 8}, "block_r"),
        ({"block_b": 8}, "block_b"),
        ({"block_b": 1}, "block_b"),
        ({"tensor_cores": False}, "block_b"),
        ({"block_v": 1 << 17}, "block_v"),
    ],
)
def test_impossible_tiles_are_refused(changes: dict[str, Any], field: str) -> None:
    options: dict[str, Any] = {"block_v": 128, "block_b": 16, "block_r": 64, **changes}
    with pytest.raises(ConfigurationError) as caught:
        DraftBlockConfiguration(**options)
    assert caught.value.field == field


def test_unknown_architectures_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="sm80"):
        configuration_for("sm70", 1, rank=4, shard_size=9, w2_dtype=torch.float32)
    assert architecture_of(torch.device("cpu")) == INTERPRETER
