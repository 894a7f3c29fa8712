"""Weights taken from the modules compute what the modules compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from calib.errors import ConfigurationError
from heads.draft_block import DraftBlockInputs, DraftBlockWorkspace
from heads.draft_block_weights import DraftBlockWeights
from heads.drafter import Drafter
from heads.reference.draft_block import draft_block
from tests.heads.tiny_models import tiny_drafter, tiny_target

pytestmark = pytest.mark.torch

TARGET = tiny_target()
KINDS: list[dict[str, Any]] = [
    {},
    {"markov_head_type": "gated"},
    {"markov_head_type": "rnn"},
]


def weights_of(drafter: Drafter) -> DraftBlockWeights:
    assert drafter.markov_head is not None
    return DraftBlockWeights.from_heads(drafter.markov_head, drafter.confidence_head)


@pytest.mark.parametrize("kind", KINDS, ids=["vanilla", "gated", "rnn"])
@torch.no_grad()
def test_a_block_agrees_with_the_modules(kind: dict[str, Any]) -> None:
    """Fed with the tokens that were drafted, the heads' own block gives the same logits."""
    drafter = tiny_drafter(TARGET, **kind)
    weights = weights_of(drafter)
    assert weights.rank == 4
    assert weights.hidden_size == 32
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(6, 3, 32, generator=g)
    inputs = DraftBlockInputs(
        anchors=torch.arange(6),
        hidden=hidden,
        base_logits=drafter.base_logits(hidden),
        temperatures=torch.tensor([0.0, 1.0] * 3),
        request_keys=torch.arange(6),
        positions=torch.arange(6),
        slopes=torch.ones(3),
        intercepts=torch.zeros(3),
    )
    workspace = DraftBlockWorkspace.allocate(weights, 6, 3, logits=torch.float32)
    output = draft_block(weights, inputs, workspace)
    previous = torch.cat([inputs.anchors[:, None], output.tokens[:, :-1]], dim=1)
    assert drafter.markov_head is not None
    assert drafter.confidence_head is not None
    expected = inputs.base_logits + drafter.markov_head.block(previous, hidden)
    assert output.logits is not None
    assert torch.allclose(output.logits, expected, atol=1e-5)
    codes = drafter.markov_head.previous_embedding(previous)
    assert output.confidence_logits is not None
    expected = drafter.confidence_head(hidden, codes)
    assert torch.allclose(output.confidence_logits, expected, atol=1e-5)


def test_heads_without_markov_input_or_confidence() -> None:
    hidden_only = tiny_drafter(TARGET)
    hidden_only.renew_confidence_head(with_markov=False)
    plain = weights_of(hidden_only)
    assert plain.confidence_code is None
    assert plain.confidence_hidden is not None
    assert plain.confidence_hidden.shape == (32,)
    drafter = tiny_drafter(TARGET)
    assert drafter.markov_head is not None
    bare = DraftBlockWeights.from_heads(drafter.markov_head, None)
    assert bare.confidence_hidden is None
    assert bare.hidden_size is None


def test_float8_rows_have_their_own_scales() -> None:
    g = torch.Generator().manual_seed(0)
    wide = torch.randn(50, 16, generator=g) * torch.logspace(-3, 2, 50)[:, None]
    wide[7] = 0.0
    weights = DraftBlockWeights("vanilla", torch.randn(50, 16, generator=g), wide)
    narrow = weights.with_w2(torch.float8_e4m3fn)
    assert narrow.operand == narrow.w1.dtype == torch.bfloat16
    assert narrow.w2_scales is not None
    back = narrow.w2.float() * narrow.w2_scales[:, None]
    # Three bits of mantissa: half a unit is 1/16 of a weight, and of the smallest normal number.
    bound = wide.abs() / 16 + wide.abs().amax(dim=1, keepdim=True) * 2.0**-6 / 448 / 16 + 1e-30
    assert ((back - wide).abs() <= bound).all()
    assert (back[7] == 0).all()
    half = weights.with_w2(torch.bfloat16)
    assert half.w2_scales is None
    assert half.w2.dtype == half.w1.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"w2": torch.zeros(9, 5)}, "w2"),
        ({"w2_scales": torch.ones(9)}, "w2_scales"),
        ({"w2": torch.zeros(9, 4).to(torch.float8_e4m3fn)}, "w2_scales"),
        ({"head": "rnn"}, "head"),
        ({"state_hidden": torch.zeros(4, 6)}, "head"),
        ({"vocabulary_offset": 6}, "vocabulary_offset"),
        ({"vocabulary_offset": -4}, "vocabulary_offset"),
        ({"w2": torch.zeros(9, 8)[:, ::2]}, "w2"),
    ],
)
def test_weights_that_do_not_belong_together_are_refused(
    changes: dict[str, Any], field: str
) -> None:
    parts: dict[str, Any] = {
        "head": "vanilla",
        "w1": torch.zeros(9, 4),
        "w2": torch.zeros(9, 4),
        **changes,
    }
    with pytest.raises(ConfigurationError) as caught:
        DraftBlockWeights(**parts)
    assert caught.value.field == field
