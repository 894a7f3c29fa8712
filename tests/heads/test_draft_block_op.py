"""The custom op compiles without a break, writes where it says, and dispatches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heads.draft_block import DraftBlockInputs, DraftBlockWorkspace
from heads.draft_block_op import draft_block
from heads.draft_block_weights import DraftBlockWeights
from heads.reference import draft_block as reference

pytestmark = pytest.mark.torch


def parts() -> tuple[DraftBlockWeights, DraftBlockInputs]:
    g = torch.Generator().manual_seed(0)
    weights = DraftBlockWeights(
        "vanilla",
        torch.randn(30, 8, generator=g),
        torch.randn(30, 8, generator=g),
        confidence_hidden=torch.randn(12, generator=g),
        confidence_code=torch.randn(8, generator=g),
        confidence_bias=torch.randn(1, generator=g),
    )
    return weights, DraftBlockInputs(
        anchors=torch.arange(5),
        hidden=torch.randn(5, 3, 12, generator=g),
        base_logits=torch.randn(5, 3, 30, generator=g),
        temperatures=torch.tensor([0.0, 1.0, 1.0, 0.5, 0.0]),
        request_keys=torch.arange(5),
        positions=torch.arange(5),
        slopes=torch.ones(3),
        intercepts=torch.zeros(3),
    )


def test_the_op_is_the_twin_on_the_cpu() -> None:
    weights, inputs = parts()
    spaces = [
        DraftBlockWorkspace.allocate(weights, 5, 3, logits=torch.float32, log_sum_exp=True)
        for _ in range(2)
    ]
    found = draft_block(weights, inputs, spaces[0])
    expected = reference.draft_block(weights, inputs, spaces[1])
    for name in ("tokens", "draft_ids", "confidences", "survival", "logits", "log_sum_exp"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.slow
def test_a_step_compiles_without_a_break() -> None:
    weights, inputs = parts()
    workspace = DraftBlockWorkspace.allocate(weights, 5, 3)

    def step(hidden: Tensor, base_logits: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        given = DraftBlockInputs(
            anchors=anchors,
            hidden=hidden * 2.0,
            base_logits=base_logits,
            temperatures=inputs.temperatures,
            request_keys=inputs.request_keys,
            positions=inputs.positions,
            slopes=inputs.slopes,
            intercepts=inputs.intercepts,
        )
        output = draft_block(weights, given, workspace)
        assert output.survival is not None
        return output.tokens + 0, output.survival * 1.0

    arguments = inputs.hidden, inputs.base_logits, inputs.anchors
    expected = step(*arguments)
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for found, wanted in zip(compiled(*arguments), expected, strict=True):
        assert torch.equal(found, wanted)


def test_the_op_passes_torchs_own_checks() -> None:
    """Schema, declared mutations and fake implementation."""
    from heads.draft_block_op import draft_block_op

    weights, inputs = parts()
    space = DraftBlockWorkspace.allocate(weights, 5, 3)
    results = space.results
    torch.library.opcheck(
        draft_block_op,
        (
            *(weights.head, weights.w1, weights.w2, None, None, None, None, None),
            *(weights.confidence_hidden, weights.confidence_code, weights.confidence_bias),
            *(None, 0, inputs.anchors, inputs.hidden, inputs.base_logits, inputs.temperatures),
            *(inputs.request_keys, inputs.positions, inputs.slopes, inputs.intercepts, True),
            *(space.words, space.arrivals, space.projected, space.states, space.latents),
            *(space.confidence_base, None, results.tokens, results.draft_ids),
            *(results.confidence_logits, results.confidences, results.survival, None, None),
        ),
        test_utils=("test_schema", "test_faketensor"),
    )
