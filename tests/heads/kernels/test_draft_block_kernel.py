"""The preparation, and who keeps the books of a position."""

from __future__ import annotations

import pytest
import torch

from heads.draft_block import DraftBlockWorkspace
from heads.kernels.draft_block import FusedDraftBlock
from heads.kernels.draft_block_configuration import DraftBlockConfiguration
from heads.reference.deterministic_argmax import LEAST_WORD, decoded_ids
from tests.heads.kernels.draft_block_cases import block_inputs, exact_weights, random_weights

pytestmark = pytest.mark.torch

FEW = DraftBlockConfiguration(32, 16, 16)


def test_preparation_resets_scratch_and_takes_the_hidden_part(device: torch.device) -> None:
    weights = random_weights(device, hidden=300)  # more than one tile of the width
    inputs = block_inputs(weights, 7, 5, hidden=300)
    workspace = DraftBlockWorkspace.allocate(weights, 9, 5)
    workspace.words.fill_(1)
    workspace.arrivals.fill_(1)
    FusedDraftBlock(weights, inputs, workspace).prepare()
    assert (workspace.words[:, :7] == LEAST_WORD).all()
    assert (workspace.words[:, 7:] == 1).all()
    assert workspace.arrivals.tolist() == [0] * 7 + [1] * 2
    assert weights.confidence_hidden is not None
    assert weights.confidence_bias is not None
    expected = inputs.hidden.double() @ weights.confidence_hidden.double() + weights.confidence_bias
    found = workspace.confidence_base[:7].double()
    assert torch.allclose(found, expected, atol=2e-6)


def test_a_position_writes_its_predecessors_tokens_and_the_last_one_its_own(
    device: torch.device,
) -> None:
    """Words are there after a position; results follow with the next one, or at the end."""
    weights = exact_weights(device, vocabulary=70)
    inputs = block_inputs(weights, 18, 2, exact=True)
    workspace = DraftBlockWorkspace.allocate(weights, 18, 2, log_sum_exp=True)
    workspace.results.tokens.fill_(-1)
    block = FusedDraftBlock(weights, inputs, workspace, FEW)
    block.prepare()
    block.position(0)
    assert (workspace.results.tokens == -1).all()
    first = decoded_ids(workspace.words[0])
    block.position(1)
    assert torch.equal(workspace.results.tokens[:, 0], first)
    assert torch.equal(workspace.results.draft_ids[:, 1], decoded_ids(workspace.words[1]))
    # Three programs a block of rows met at the end; the third of each finished.
    assert workspace.arrivals[:2].tolist() == [3, 3]
    assert workspace.arrivals[2:].tolist() == [0] * 16


def test_confidences_and_survival_chain_through_positions(device: torch.device) -> None:
    weights = random_weights(device)
    inputs = block_inputs(weights, 3, 4)
    inputs.slopes.copy_(torch.tensor([1e4, -1e4, 0.0, 1.0]))  # saturated both ways, then one half
    inputs.intercepts.zero_()
    workspace = DraftBlockWorkspace.allocate(weights, 3, 4)
    output = FusedDraftBlock(weights, inputs, workspace).run()
    assert output.confidences is not None
    assert output.survival is not None
    assert output.confidence_logits is not None
    served = inputs.slopes * output.confidence_logits
    assert torch.allclose(output.confidences, torch.sigmoid(served), atol=2e-7)
    assert ((output.confidences[:, :2] < 1e-6) | (output.confidences[:, :2] > 1 - 1e-6)).all()
    assert (output.confidences[:, 2] == 0.5).all()
    product = output.confidences[:, 0].clone()
    for index in range(4):  # float32, left to right
        if index:
            product = product * output.confidences[:, index]
        assert torch.equal(output.survival[:, index], product)
