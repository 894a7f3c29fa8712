"""The recurrent head against Eq. 6 written out in float64."""

from __future__ import annotations

import pytest
import torch

from heads.configuration import DrafterConfiguration
from heads.markov import GatedMarkovHead, MarkovHead
from heads.rnn import RecurrentHead, build_markov_head
from tests.heads.test_configuration import VALUES
from tests.heads.test_markov import CONFIGURATION, inputs

pytestmark = pytest.mark.torch


def test_state_and_bias_follow_the_paper() -> None:
    torch.manual_seed(0)
    head = RecurrentHead(CONFIGURATION)
    previous, hidden = inputs(3, 7)
    weight, offset = head.joint_proj.weight.double(), head.joint_proj.bias.double()
    state = torch.zeros(3, 4, dtype=torch.float64)
    expected = []
    for k in range(7):
        code = head.markov_w1.weight.double()[previous[:, k]]
        z = torch.cat([state, code, hidden[:, k].double()], dim=-1)
        projected = z @ weight.T + offset
        gate = torch.sigmoid(projected[:, :4])
        state = gate * state + (1 - gate) * torch.tanh(projected[:, 4:8])
        expected.append(torch.tanh(projected[:, 8:]) @ head.markov_w2.weight.double().T)
    found = head.block(previous, hidden)
    assert found.shape == (3, 7, 20)
    assert (found.double() - torch.stack(expected, dim=1)).abs().max() < 1e-5


def test_block_equals_repeated_steps_in_any_leading_shape() -> None:
    torch.manual_seed(1)
    head = RecurrentHead(CONFIGURATION)
    previous, hidden = inputs(2, 5, 7)
    state = head.initial_state(hidden[..., 0, :])
    assert state.shape == (2, 5, 4)
    assert not state.any()
    block = head.block(previous, hidden)
    for k in range(7):
        bias, state = head.step(previous[..., k], hidden[..., k, :], state)
        assert torch.allclose(bias, block[..., k, :], atol=1e-6)


def test_the_whole_prefix_matters() -> None:
    torch.manual_seed(1)
    head = RecurrentHead(CONFIGURATION)
    previous, hidden = inputs(1, 7)
    other = previous.clone()
    other[0, 0] = (other[0, 0] + 1) % 50
    change = (head.block(previous, hidden) - head.block(other, hidden)).abs().amax(dim=-1)[0]
    assert (change > 0).all()  # a first-order head would change at position 1 only


def test_the_configuration_chooses_the_head() -> None:
    for kind, expected in (
        ("vanilla", MarkovHead),
        ("gated", GatedMarkovHead),
        ("rnn", RecurrentHead),
    ):
        configuration = DrafterConfiguration.from_dict({**VALUES, "markov_head_type": kind})
        assert type(build_markov_head(configuration)) is expected
    none = {**VALUES, "markov_rank": 0, "confidence_head_with_markov": False}
    assert build_markov_head(DrafterConfiguration.from_dict(none)) is None


def test_names_are_deepspecs() -> None:
    state = RecurrentHead(CONFIGURATION).state_dict()
    assert state["joint_proj.weight"].shape == (3 * 4, 2 * 4 + 32)
    assert state["joint_proj.bias"].shape == (3 * 4,)
