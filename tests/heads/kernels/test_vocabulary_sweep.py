"""What a sweep makes of ties, infinities and NaN, whatever its tiles; the law of its samples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from heads.draft_block import DraftBlockInputs, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.kernels.draft_block_configuration import DraftBlockConfiguration
from heads.reference import draft_block as reference
from tests.heads.kernels.draft_block_cases import (
    FLOAT8,
    block_inputs,
    exact_weights,
    run_kernels,
)
from tests.heads.kernels.float64_draft_block import assert_block_is_right

pytestmark = pytest.mark.torch

NAN, INF = float("nan"), float("inf")
SINGLE = DraftBlockConfiguration(32, 1, 16, stages=1, tensor_cores=False)
FEW = DraftBlockConfiguration(32, 16, 16)
FORWARD = replace(FEW, serpentine=False, tiles=2)


def plain_inputs(
    base: Tensor,  # [B, γ, V]
    temperatures: Tensor,  # [B]
) -> tuple[DraftBlockWeights, DraftBlockInputs]:
    """Heads of zeros, so that corrected logits are the base logits."""
    rows, gamma, vocabulary = base.shape
    device = base.device
    codes = torch.zeros(vocabulary, 4, device=device)
    row = torch.arange(rows, device=device)
    return DraftBlockWeights("vanilla", codes, codes), DraftBlockInputs(
        anchors=torch.zeros_like(row),
        hidden=torch.zeros(rows, gamma, 8, device=device),
        base_logits=base,
        temperatures=temperatures,
        request_keys=row * 12_345,
        positions=row,
        slopes=torch.ones(gamma, device=device),
        intercepts=torch.zeros(gamma, device=device),
    )


def _with(vocabulary: int, values: dict[int, float], fill: float = 0.0) -> list[float]:
    row = [fill] * vocabulary
    for token, value in values.items():
        row[token] = value
    return row


SPECIAL = [  # row of 70 logits, token
    (_with(70, {3: 2.0, 40: 2.0, 69: 2.0}), 3),  # ties over tiles
    (_with(70, {}), 0),
    (_with(70, {40: NAN, 50: NAN, 2: INF}), 40),
    (_with(70, {33: INF, 5: INF}), 5),
    (_with(70, {}, -INF), 0),
    (_with(70, {68: -3e38}, -INF), 68),  # one token that may be
    (_with(70, {1: -0.0, 2: 0.0}, -1.0), 1),
    (_with(70, {64: 88.0, 65: 87.9999}, -88.0), 64),  # saturated
]


@pytest.mark.parametrize("configuration", [SINGLE, FEW, FORWARD, None], ids=["1", "16", "up", "t"])
def test_ties_infinities_and_nan(
    configuration: DraftBlockConfiguration | None, device: torch.device
) -> None:
    """Greedy rows, and in a sampled launch: T = 0 adds a noise of exactly nothing."""
    base = torch.tensor([row for row, _ in SPECIAL], device=device)[:, None]
    weights, inputs = plain_inputs(base, torch.zeros(len(SPECIAL), device=device))
    output = run_kernels(weights, inputs, configuration, log_sum_exp=True)
    assert output.tokens[:, 0].tolist() == [token for _, token in SPECIAL]
    assert output.tokens[:, 0].tolist() == base[:, 0].argmax(dim=1).tolist()
    greedy = run_kernels(weights, replace(inputs, sampled=False), configuration)
    assert torch.equal(greedy.tokens, output.tokens)
    assert output.log_sum_exp is not None
    expected = base[:, 0].double().logsumexp(dim=1).float()
    assert torch.allclose(output.log_sum_exp[:, 0], expected, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_sampled_rows_with_infinities(device: torch.device) -> None:
    """A token of −∞ is never drawn, not even beside a single possible one; NaN wins."""
    rows = [
        _with(70, {68: -5.0}, -INF),
        _with(70, {1: NAN}),
        _with(70, {30: INF}),
        _with(70, {4: 1.0, 60: 1.0}, -INF),
    ]
    base = torch.tensor(rows, device=device)[:, None].expand(-1, 2, -1).contiguous()
    weights, inputs = plain_inputs(base, torch.ones(4, device=device))
    output = run_kernels(weights, inputs, FEW)
    assert output.tokens[0].tolist() == [68, 68]
    assert output.tokens[1].tolist() == [1, 1]
    assert output.tokens[2].tolist() == [30, 30]
    assert set(output.tokens[3].tolist()) <= {4, 60}


def test_tokens_do_not_depend_on_tiles(device: torch.device) -> None:
    """Nor log-sum-exps, but for rounding; ``test_draft_block.py`` does it for each type of W2."""
    weights = exact_weights(device, vocabulary=70, w2=FLOAT8)
    inputs = block_inputs(weights, 3, 2, exact=True)
    expected = run_kernels(weights, inputs, log_sum_exp=True)
    for configuration in (FEW, FORWARD):
        output = run_kernels(weights, inputs, configuration, log_sum_exp=True)
        assert torch.equal(output.tokens, expected.tokens)
        assert output.log_sum_exp is not None
        assert expected.log_sum_exp is not None
        assert torch.allclose(output.log_sum_exp, expected.log_sum_exp, rtol=1e-6)


def test_bytes_of_float8_are_decoded_exactly(device: torch.device) -> None:
    """All 254 numbers of e4m3, subnormal ones included, as hardware without the type reads them."""
    every = torch.arange(256, dtype=torch.uint8)
    finite = every[(every & 0x7F) != 0x7F]
    w2 = finite.view(FLOAT8).repeat(4)[:1008].view(63, 16).to(device)
    weights = DraftBlockWeights(
        "vanilla",
        torch.eye(63, 16, device=device).bfloat16(),
        w2,
        w2_scales=torch.ones(63, device=device),
    )
    _, inputs = plain_inputs(torch.zeros(16, 1, 63, device=device), torch.zeros(16, device=device))
    inputs = replace(inputs, anchors=torch.arange(16, device=device))
    native = run_kernels(weights, inputs, FEW)
    decoded = run_kernels(weights, inputs, replace(FEW, decode_float8=True))
    assert native.logits is not None
    assert decoded.logits is not None
    assert torch.equal(decoded.logits[:, 0], w2.float().T)
    assert torch.equal(decoded.logits, native.logits)


@pytest.mark.statistical
def test_samples_follow_the_softmax(device: torch.device) -> None:
    """1,024 draws by the kernel; the twin has the same bits and is tested on 200,000."""
    vocabulary, rows, gamma = 12, 256, 4
    base = torch.randn(vocabulary, generator=torch.Generator().manual_seed(2)).to(device) * 1.5
    weights, inputs = plain_inputs(
        base.expand(rows, gamma, vocabulary).contiguous(), torch.full((rows,), 0.8, device=device)
    )
    output = run_kernels(weights, inputs, DraftBlockConfiguration(16, 256, 16))
    drawn = output.tokens.flatten().cpu().numpy()
    expected = torch.softmax(base.double() / 0.8, dim=0).cpu().numpy() * drawn.size
    counts = np.bincount(drawn, minlength=vocabulary)
    kept = expected >= 5
    found = np.append(counts[kept], counts[~kept].sum())
    wanted = np.append(expected[kept], expected[~kept].sum())
    usable = wanted > 0
    assert stats.chisquare(found[usable], wanted[usable]).pvalue > 1e-3
    workspace = DraftBlockWorkspace.allocate(weights, rows, gamma)
    twin = reference.draft_block(weights, inputs, workspace)
    assert torch.equal(output.tokens, twin.tokens)
    assert_block_is_right(weights, inputs, output)
