"""The confidence head against Eq. 7 in float64."""

from __future__ import annotations

import pytest
import torch

from calib.errors import ConfigurationError
from heads.confidence import ConfidenceHead
from heads.configuration import DrafterConfiguration
from tests.heads.test_configuration import VALUES

pytestmark = pytest.mark.torch


def configuration(**changes: object) -> DrafterConfiguration:
    return DrafterConfiguration.from_dict({**VALUES, **changes})


@pytest.mark.parametrize("with_markov", [True, False])
def test_one_linear_layer_over_hidden_state_and_code(with_markov: bool) -> None:
    torch.manual_seed(0)
    head = ConfidenceHead(configuration(confidence_head_with_markov=with_markov))
    hidden, code = torch.randn(2, 3, 7, 32), torch.randn(2, 3, 7, 4)
    joined = torch.cat([hidden, code], dim=-1) if with_markov else hidden
    expected = (joined.double() * head.proj.weight[0].double()).sum(-1) + head.proj.bias.double()
    found = head(hidden, code)
    assert found.shape == (2, 3, 7)
    assert (found.double() - expected).abs().max() < 1e-5
    assert head.proj.weight.shape == (1, 36 if with_markov else 32)


def test_logits_are_float32_in_a_half_precision_model() -> None:
    """Serving computes them in float32; a bf16 sum would be off by a hundredth."""
    torch.manual_seed(0)
    head = ConfidenceHead(configuration()).bfloat16()
    hidden, code = torch.randn(50, 32).bfloat16(), torch.randn(50, 4).bfloat16()
    found = head(hidden, code)
    assert found.dtype == torch.float32
    joined = torch.cat([hidden, code], dim=-1).double()
    expected = joined @ head.proj.weight[0].double() + head.proj.bias.double()
    assert (found.double() - expected).abs().max() < 1e-5


def test_a_missing_code_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="confidence_head_with_markov"):
        ConfidenceHead(configuration())(torch.zeros(1, 32), None)
    plain = ConfidenceHead(configuration(confidence_head_with_markov=False))
    assert plain(torch.zeros(1, 32), None).shape == (1,)
