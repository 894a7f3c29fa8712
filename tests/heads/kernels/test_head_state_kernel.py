"""Latents and states of gated and RNN heads, position by position."""

from __future__ import annotations

import pytest
import torch

from heads.configuration import MarkovHeadType
from heads.draft_block import DraftBlock, DraftBlockWorkspace
from heads.kernels.draft_block import FusedDraftBlock
from heads.reference.deterministic_argmax import decoded_ids
from heads.reference.draft_block import ReferenceDraftBlock
from tests.heads.kernels.draft_block_cases import block_inputs, random_weights

pytestmark = pytest.mark.torch

HEADS: list[MarkovHeadType] = ["gated", "rnn"]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("w2", [torch.float32, torch.bfloat16], ids=str)
def test_projection_states_and_latents(
    head: MarkovHeadType, w2: torch.dtype, device: torch.device
) -> None:
    """A rank over one tile of outputs, rows over one tile of rows."""
    weights = random_weights(device, head=head, rank=72, hidden=100, vocabulary=33, w2=w2)
    inputs = block_inputs(weights, 18, 3, hidden=100)
    spaces = [DraftBlockWorkspace.allocate(weights, 18, 3) for _ in range(2)]
    fused = FusedDraftBlock(weights, inputs, spaces[0])
    twin = ReferenceDraftBlock(weights, inputs, spaces[1])
    spaces[0].states.fill_(float("nan"))  # s_0 is zero whatever is there
    block: DraftBlock
    for block in (fused, twin):
        block.prepare()
    assert torch.allclose(spaces[0].projected, spaces[1].projected, atol=5e-6)
    for index in range(3):
        for block in (fused, twin):
            block.position(index)
        if w2 == torch.float32:
            drafted = [decoded_ids(space.words[index]) for space in spaces]
            assert torch.equal(drafted[0], drafted[1])
        if head == "rnn":
            found, expected = (space.states[(index + 1) % 2] for space in spaces)
            tolerance = 2e-6 if w2 == torch.float32 else 2e-3
            assert torch.allclose(found, expected, atol=tolerance)


def test_gated_latents_are_gated_codes(device: torch.device) -> None:
    weights = random_weights(device, head="gated")
    inputs = block_inputs(weights, 5, 1)
    workspace = DraftBlockWorkspace.allocate(weights, 5, 1)
    FusedDraftBlock(weights, inputs, workspace).run()
    assert weights.state_code is not None
    code = weights.w1[inputs.anchors].double()
    joint = workspace.projected[:, 0].double() + code @ weights.state_code.double().T
    expected = torch.sigmoid(joint) * code
    assert torch.allclose(workspace.latents.double(), expected, atol=1e-6)
