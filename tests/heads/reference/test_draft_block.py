"""The eager twin: against float64, against the modules it stands for, and its law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlockInputs, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.reference.draft_block import draft_block
from tests.heads.kernels.float64_draft_block import Tolerance, assert_block_is_right

pytestmark = pytest.mark.torch

HEADS: list[MarkovHeadType] = ["vanilla", "gated", "rnn"]


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5


def heads(head: MarkovHeadType, vocabulary: int = 61, rank: int = 8) -> DraftBlockWeights:
    g = torch.Generator().manual_seed(4)
    outputs = {"vanilla": 0, "gated": 1, "rnn": 3}[head] * rank
    has_state, is_recurrent = head != "vanilla", head == "rnn"
    return DraftBlockWeights(
        head,
        torch.randn(vocabulary, rank, generator=g),
        _normal(g, vocabulary, rank) * 2,
        state_hidden=_normal(g, outputs, 12) if has_state else None,
        state_code=_normal(g, outputs, rank) if has_state else None,
        state_recurrent=_normal(g, outputs, rank) if is_recurrent else None,
        state_bias=_normal(g, outputs) if has_state else None,
        confidence_hidden=_normal(g, 12),
        confidence_code=_normal(g, rank),
        confidence_bias=torch.tensor([0.3]),
    )


def inputs(weights: DraftBlockWeights, rows: int, gamma: int = 4) -> DraftBlockInputs:
    g = torch.Generator().manual_seed(5)
    return DraftBlockInputs(
        anchors=torch.randint(0, len(weights.w1), (rows,), generator=g),
        hidden=torch.randn(rows, gamma, 12, generator=g).to(weights.w1.dtype),
        base_logits=torch.randn(rows, gamma, weights.shard_size, generator=g),
        temperatures=torch.tensor([0.0, 1.0, 0.5]).repeat(rows)[:rows],
        request_keys=torch.randint(-(1 << 62), 1 << 62, (rows,), generator=g),
        positions=torch.randint(0, 9000, (rows,), generator=g),
        slopes=torch.rand(gamma, generator=g) + 0.5,
        intercepts=torch.randn(gamma, generator=g),
    )


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("w2", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_against_float64(head: MarkovHeadType, w2: torch.dtype) -> None:
    weights = heads(head).with_w2(w2)
    given = inputs(weights, 40)
    workspace = DraftBlockWorkspace.allocate(weights, 40, 4, logits=torch.float32, log_sum_exp=True)
    output = draft_block(weights, given, workspace)
    rounded = head != "vanilla" and w2 != torch.float32
    tolerance = Tolerance(logits=5e-3) if rounded else Tolerance()
    near = assert_block_is_right(weights, given, output, tolerance)
    assert near <= 2


@pytest.mark.statistical
def test_tokens_follow_the_softmax() -> None:
    """Chi-square of 200,000 draws at two temperatures, and nothing drawn without mass."""
    vocabulary, rows = 24, 20_000
    weights = DraftBlockWeights("vanilla", torch.zeros(vocabulary, 4), torch.zeros(vocabulary, 4))
    g = torch.Generator().manual_seed(0)
    base = torch.randn(vocabulary, generator=g) * 2
    base[5] = -torch.inf
    ten = torch.arange(rows)
    for temperature in (1.0, 0.4):
        given = DraftBlockInputs(
            anchors=torch.zeros(rows, dtype=torch.long),
            hidden=torch.zeros(rows, 10, 12),
            base_logits=base.expand(rows, 10, vocabulary),
            temperatures=torch.full((rows,), temperature),
            request_keys=ten // 50,
            positions=ten % 50,
            slopes=torch.ones(10),
            intercepts=torch.zeros(10),
        )
        workspace = DraftBlockWorkspace.allocate(weights, rows, 10)
        drawn = draft_block(weights, given, workspace).tokens.flatten().numpy()
        expected = torch.softmax(base.double() / temperature, dim=0).numpy() * drawn.size
        counts = np.bincount(drawn, minlength=vocabulary)
        assert counts[5] == 0
        kept = expected >= 5  # rarer tokens are counted together
        found = np.append(counts[kept], counts[~kept].sum())
        wanted = np.append(expected[kept], expected[~kept].sum())
        usable = wanted > 0
        assert stats.chisquare(found[usable], wanted[usable]).pvalue > 1e-3


def test_logits_that_are_kept_rounded_are_the_ones_sampled_from() -> None:
    weights = heads("vanilla")
    given = inputs(weights, 30)
    workspace = DraftBlockWorkspace.allocate(weights, 30, 4, logits=torch.bfloat16)
    output = draft_block(weights, given, workspace)
    assert output.logits is not None
    assert output.logits.dtype == torch.bfloat16
    assert_block_is_right(weights, given, output)
