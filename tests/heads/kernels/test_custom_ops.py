"""Custom ops: torch's own checks, whole-graph compilation, gradients, both twins behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError
from heads.kernel_dispatch import VARIABLE
from heads.kernels import custom_ops
from heads.kernels.custom_ops import reliability_sums, soft_label_terms
from tests.heads.kernels.float64_labels import scores

pytestmark = pytest.mark.torch

ONE = torch.ones(1)


@pytest.fixture(params=["reference", "triton"])
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each twin in turn behind the ops."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)


def block(seed: int = 0) -> dict[str, Tensor]:
    """Two blocks of three positions over 60 tokens."""
    draft, target = scores(6, 60, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return {
        "draft": draft.reshape(2, 3, 60),
        "target": target.reshape(2, 3, 60),
        "labels": torch.randint(0, 60, (2, 3), generator=generator),
        "confidence_logits": torch.randn(2, 3, generator=generator),
    }


def loss_of(draft: Tensor, target: Tensor, labels: Tensor, confidence_logits: Tensor) -> Tensor:
    terms = soft_label_terms(draft, target, labels=labels, confidence_logits=confidence_logits)
    return terms.distance.sum() - 0.5 * terms.log_probability.sum() + terms.confidence_error.sum()


def float64_loss(
    draft: Tensor, target: Tensor, labels: Tensor, confidence_logits: Tensor
) -> Tensor:
    q, p = torch.softmax(draft.double(), -1), torch.softmax(target.double(), -1)
    distance = (q - p).abs().sum(-1)
    picked = q.log().gather(-1, labels[..., None])
    error = torch.nn.functional.binary_cross_entropy_with_logits(
        confidence_logits.double(), (1 - distance / 2).detach(), reduction="sum"
    )
    return distance.sum() - 0.5 * picked.sum() + error


def with_gradients(function: Any, values: dict[str, Tensor]) -> list[Tensor]:
    leaves = {
        name: value.clone().requires_grad_() if value.is_floating_point() else value
        for name, value in values.items()
    }
    loss = function(**leaves)
    loss.backward()
    assert leaves["target"].grad is None or function is float64_loss
    return [loss.detach(), leaves["draft"].grad, leaves["confidence_logits"].grad]


def test_gradients_equal_float64(twin: str, device: torch.device) -> None:
    values = {name: value.to(device) for name, value in block().items()}
    found, truth = with_gradients(loss_of, values), with_gradients(float64_loss, values)
    for mine, theirs in zip(found, truth, strict=True):
        assert torch.allclose(mine.double(), theirs.double(), atol=1e-5, rtol=1e-5), twin


# The op is opaque: one backend suffices for the slow twin.
@pytest.mark.parametrize(
    ("twin", "backend"),
    [
        ("reference", "aot_eager"),
        pytest.param("reference", "eager", marks=pytest.mark.slow),
        pytest.param("triton", "aot_eager", marks=pytest.mark.slow),
    ],
    indirect=["twin"],
)
def test_a_whole_graph_compiles(twin: str, backend: str, device: torch.device) -> None:
    values = {name: value.to(device) for name, value in block(1).items()}
    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend=backend)
    for mine, theirs in zip(
        with_gradients(compiled, values), with_gradients(loss_of, values), strict=True
    ):
        assert torch.equal(mine, theirs), twin


def test_sums_compile_too(twin: str, device: torch.device) -> None:
    def counted(p: Tensor, y: Tensor) -> Tensor:
        return reliability_sums(torch.sigmoid(p), y).sums

    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    p, y = (torch.rand(50, 2, generator=generator).to(device) for _ in range(2))
    compiled = torch.compile(counted, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(p, y), counted(p, y)), twin


@pytest.mark.parametrize("case", ["all", "bare", "exact", "known"])
def test_torch_accepts_the_soft_label_op(case: str) -> None:
    draft, target = scores(4, 9)
    wanted = case == "all"
    labels = torch.tensor([1, 2, 3, -1]) if wanted else None
    logits = torch.randn(4).requires_grad_() if wanted else None
    lse = draft.logsumexp(-1) if case == "known" else None
    arguments = (
        draft.requires_grad_(), target, ONE, ONE, lse, lse, labels, logits,
        case == "exact", case == "known", True,
    )  # fmt: skip
    torch.library.opcheck(custom_ops.soft_label_op, arguments)


def test_torch_accepts_the_other_ops() -> None:
    draft, target = scores(4, 9, draft=torch.bfloat16)
    statistics = soft_label_terms(draft, target).statistics
    arguments = (torch.ones(4), None, draft, target, ONE, ONE, None, statistics)
    torch.library.opcheck(custom_ops.soft_label_gradient_op, arguments)
    p, y = torch.rand(5, 3), torch.rand(5, 3)
    mask, bins = torch.rand(5, 3) < 0.5, torch.randint(0, 15, (5, 3))
    torch.library.opcheck(custom_ops.reliability_bins_op, (p, y, None, None, None, 15))
    torch.library.opcheck(custom_ops.reliability_bins_op, (p, y, mask, bins, p, 15))


@pytest.mark.parametrize(
    ("rule", "mode", "expected"),
    [
        ("rejection", "sampled", 0.7),
        ("rejection", "greedy", 0.3),
        ("exact_match", "sampled", 0.46),
        ("exact_match", "greedy", 0.3),
        ("greedy", "sampled", 0.4),
        ("greedy", "greedy", 0.0),
        ("block", "greedy", 0.3),
    ],
)
def test_r29_one_number_for_each_rule(
    rule: str, mode: str, expected: float, twin: str, device: torch.device
) -> None:
    draft = torch.tensor([[0.6, 0.4]], device=device).log()
    target = torch.tensor([[0.3, 0.7]], device=device).log()
    terms = soft_label_terms(draft, target, rule=rule, draft_mode=mode)
    assert terms.label.item() == pytest.approx(expected, abs=1e-6), twin


def test_a_batch_may_mix_greedy_and_sampled_requests(twin: str, device: torch.device) -> None:
    draft = torch.tensor([[0.6, 0.4]] * 3, device=device).log()
    target = torch.tensor([[0.3, 0.7], [0.3, 0.7], [0.7, 0.3]], device=device).log()
    temperature = torch.tensor([1.0, 0.0, 0.0], device=device)
    label = soft_label_terms(draft, target, temperature=temperature).label
    assert label.tolist() == pytest.approx([0.7, 0.0, 1.0], abs=1e-6), twin


def test_without_gradients_nothing_is_kept() -> None:
    values = block()
    terms = soft_label_terms(values["draft"].requires_grad_(), values["target"])
    assert terms.distance.requires_grad
    assert not terms.label.requires_grad
    with torch.no_grad():
        assert not soft_label_terms(values["draft"], values["target"]).distance.requires_grad


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rule": "block"}, "rule"),
        ({"rule": "nonsense"}, "rule"),
        ({"draft_mode": "nonsense"}, "draft_mode"),
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": torch.ones(5)}, "temperature"),
        ({"draft_mode": "greedy", "draft_log_sum_exp": torch.zeros(2, 3)}, "draft_log_sum_exp"),
        ({"temperature": 0.0, "target_log_sum_exp": torch.zeros(2, 3)}, "target_log_sum_exp"),
    ],
)
def test_wrong_options_are_named(change: dict[str, Any], field: str) -> None:
    values = block()
    with pytest.raises(ConfigurationError) as caught:
        soft_label_terms(values["draft"], values["target"], **change)
    assert caught.value.field == field


def test_wrong_shapes_are_named() -> None:
    values = block()
    with pytest.raises(DistributionError) as caught:
        soft_label_terms(values["draft"], values["target"][..., :-1])
    assert caught.value.field == "target"
    with pytest.raises(DistributionError) as caught:
        soft_label_terms(values["draft"], values["target"], labels=torch.zeros(6, dtype=torch.long))
    assert caught.value.field == "rows"
    with pytest.raises(DistributionError) as caught:
        soft_label_terms(values["labels"], values["labels"])
    assert caught.value.field == "draft"
    with pytest.raises(ConfigurationError) as caught:
        reliability_sums(torch.rand(3, 2), torch.rand(3, 1))
    assert caught.value.field == "y"
    with pytest.raises(ConfigurationError) as caught:
        reliability_sums(torch.rand(3), torch.rand(3))
    assert caught.value.field == "p"
