"""Shards of the vocabulary merge to the bits of the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from calib.errors import ConfigurationError
from heads.draft_block import DraftBlock, DraftBlockInputs, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.kernels.draft_block import FusedDraftBlock
from heads.kernels.draft_block_configuration import DraftBlockConfiguration
from heads.kernels.vocabulary_shards import (
    draft_block_in_shards,
    merge_log_sum_exps,
    shard_of,
    shard_ranges,
)
from heads.reference.draft_block import ReferenceDraftBlock
from heads.reference.draft_block import draft_block as whole_block
from tests.heads.kernels.draft_block_cases import block_inputs, exact_weights, random_weights
from tests.heads.kernels.float64_draft_block import assert_block_is_right

pytestmark = pytest.mark.torch

FEW = DraftBlockConfiguration(64, 16, 16)


def shards_of(
    weights: DraftBlockWeights, inputs: DraftBlockInputs, count: int, *, fused: bool
) -> list[DraftBlock]:
    blocks: list[DraftBlock] = []
    for ids in shard_ranges(weights.shard_size, count, multiple=4):
        part = shard_of(weights, ids)
        own = replace(inputs, base_logits=inputs.base_logits[..., ids.start : ids.stop])
        space = DraftBlockWorkspace.allocate(
            part, inputs.rows, inputs.gamma, logits=torch.float32, log_sum_exp=True
        )
        if fused:
            blocks.append(FusedDraftBlock(part, own, space, FEW))
        else:
            blocks.append(ReferenceDraftBlock(part, own, space))
    return blocks


@pytest.mark.parametrize("fused", [True, False], ids=["kernels", "reference"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_shards_equal_the_whole(count: int, fused: bool, device: torch.device) -> None:
    weights = exact_weights(device, vocabulary=101, w2=torch.bfloat16)
    weights = replace(weights, draft_to_target=torch.arange(100, -1, -1, device=device))
    inputs = block_inputs(weights, 4, 2, exact=True)
    space = DraftBlockWorkspace.allocate(weights, 4, 2, logits=torch.float32, log_sum_exp=True)
    whole = whole_block(weights, inputs, space)
    blocks = shards_of(weights, inputs, count, fused=fused)
    output = draft_block_in_shards(blocks)
    for name in ("tokens", "draft_ids", "logits"):
        assert torch.equal(getattr(output, name), getattr(whole, name)), name
    for name in ("confidence_logits", "confidences", "survival", "log_sum_exp"):
        found, expected = getattr(output, name), getattr(whole, name)
        assert torch.allclose(found, expected, atol=1e-6, rtol=1e-6), name
    for block in blocks:  # every shard knows the result
        assert torch.equal(block.workspace.results.tokens, whole.tokens)


def test_shards_of_a_head_with_a_state(device: torch.device) -> None:
    weights = random_weights(device, head="rnn", vocabulary=100)
    inputs = block_inputs(weights, 3, 2)
    output = draft_block_in_shards(shards_of(weights, inputs, 2, fused=True))
    assert_block_is_right(weights, inputs, output)


def test_ranges_cover_the_vocabulary_in_multiples() -> None:
    assert shard_ranges(151_936, 1) == (range(151_936),)
    assert shard_ranges(1000, 3) == (range(336), range(336, 672), range(672, 1000))
    assert shard_ranges(257, 2, multiple=4) == (range(132), range(132, 257))
    for shards in (2, 4, 8):
        ranges = shard_ranges(151_936, shards)
        assert [i for part in ranges for i in (part.start, part.stop)][1:-1:2] == [
            part.start for part in ranges[1:]
        ]
        assert all(part.start % 16 == 0 and len(part) > 0 for part in ranges)
    for vocabulary, shards, multiple in ((7, 3, 4), (100, 0, 16), (100, 2, 6)):
        with pytest.raises(ConfigurationError):
            shard_ranges(vocabulary, shards, multiple=multiple)


def test_log_sum_exps_merge(device: torch.device) -> None:
    scores = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)).to(device)
    scores[2, :10] = -torch.inf
    parts = [part.logsumexp(dim=1) for part in scores.split(10, dim=1)]
    assert torch.allclose(merge_log_sum_exps(parts), scores.logsumexp(dim=1), atol=1e-6)


def test_gaps_between_shards_are_refused(device: torch.device) -> None:
    weights = exact_weights(device, vocabulary=64)
    inputs = block_inputs(weights, 2, 2, exact=True)
    blocks = shards_of(weights, inputs, 2, fused=False)
    with pytest.raises(ConfigurationError, match="next shard begins at id 32"):
        draft_block_in_shards([blocks[0], blocks[0]])
    with pytest.raises(ConfigurationError, match="at least one"):
        draft_block_in_shards([])
    with pytest.raises(ConfigurationError, match="consecutive"):
        shard_of(weights, range(32, 80))
