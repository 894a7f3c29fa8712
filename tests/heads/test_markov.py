"""Markov heads against formulas written out in float64."""

from __future__ import annotations

import pytest
import torch

from calib.errors import ConfigurationError
from heads.configuration import DrafterConfiguration
from heads.markov import GatedMarkovHead, MarkovHead
from tests.heads.test_configuration import VALUES

pytestmark = pytest.mark.torch

CONFIGURATION = DrafterConfiguration.from_dict(VALUES)  # V = 50, V' = 20, D = 32, r = 4


def inputs(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    previous = torch.randint(0, 50, shape, generator=generator)
    return previous, torch.randn(*shape, 32, generator=generator)


def test_vanilla_is_a_low_rank_transition() -> None:
    torch.manual_seed(0)
    head = MarkovHead(CONFIGURATION)
    previous, hidden = inputs(2, 5, 7)
    w1, w2 = head.markov_w1.weight.double(), head.markov_w2.weight.double()
    full = w1 @ w2.T  # [V, V'], the matrix that Eq. 5 factorises
    bias = head.block(previous, hidden)
    assert bias.shape == (2, 5, 7, 20)
    assert (bias.double() - full[previous]).abs().max() < 1e-5
    assert torch.equal(head.block(previous, hidden * 7), bias)  # the hidden state plays no part


def test_gate_scales_the_code_by_hidden_state_and_token() -> None:
    torch.manual_seed(0)
    head = GatedMarkovHead(CONFIGURATION)
    previous, hidden = inputs(3, 4)
    code = head.markov_w1.weight.double()[previous]
    joined = torch.cat([hidden.double(), code], dim=-1)
    gate = 1 / (1 + torch.exp(-(joined @ head.gate_proj.weight.double().T + head.gate_proj.bias)))
    expected = (gate * code) @ head.markov_w2.weight.double().T
    assert (head.block(previous, hidden).double() - expected).abs().max() < 1e-5
    assert (head.previous_embedding(previous).double() - code).abs().max() == 0


@pytest.mark.parametrize("kind", [MarkovHead, GatedMarkovHead])
def test_block_equals_repeated_steps(kind: type[MarkovHead]) -> None:
    torch.manual_seed(1)
    head = kind(CONFIGURATION)
    previous, hidden = inputs(2, 7)
    state = head.initial_state(hidden[:, 0])
    assert state.shape == (2, 0)
    biases = []
    for k in range(7):
        bias, state = head.step(previous[:, k], hidden[:, k], state)
        biases.append(bias)
    assert torch.allclose(torch.stack(biases, dim=1), head.block(previous, hidden), atol=1e-6)


def test_names_are_deepspecs() -> None:
    assert set(MarkovHead(CONFIGURATION).state_dict()) == {"markov_w1.weight", "markov_w2.weight"}
    gated = GatedMarkovHead(CONFIGURATION).state_dict()
    assert gated["gate_proj.weight"].shape == (4, 32 + 4)
    assert gated["gate_proj.bias"].shape == (4,)


def test_rank_zero_is_refused() -> None:
    values = {**VALUES, "markov_rank": 0, "confidence_head_with_markov": False}
    with pytest.raises(ConfigurationError, match="markov_rank"):
        MarkovHead(DrafterConfiguration.from_dict(values))
