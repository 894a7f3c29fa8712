"""The three losses against float64, and where their gradients go."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from calib.errors import ConfigurationError, DistributionError
from heads.losses import DrafterLoss, LossWeights, drafter_loss, drafter_loss_from_logits

pytestmark = pytest.mark.torch

OUTSIDE = 0.3


def batch(dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Two blocks of γ = 3 over 5 draft tokens; the target keeps 30 % of its mass elsewhere."""
    generator = torch.Generator().manual_seed(0)
    target = torch.softmax(torch.randn(2, 3, 5, generator=generator).to(dtype) * 2, dim=-1)
    return {
        "draft_logits": torch.randn(2, 3, 5, generator=generator).to(dtype) * 2,
        "confidence_logits": torch.randn(2, 3, generator=generator).to(dtype),
        "target_probabilities": target * (1 - OUTSIDE),
        "labels": torch.tensor([[0, 4, -1], [2, 1, 3]]),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
    }


def expected(values: dict[str, Any], decay: float) -> tuple[float, float, float]:
    """Cross-entropy, L1 and confidence loss, position by position."""
    ce = l1 = bce = ce_weights = weights = 0.0
    for row in range(2):
        for k in range(3):
            if not values["mask"][row, k]:
                continue
            w = math.exp(-k / decay)
            logits = values["draft_logits"][row, k].double()
            q = torch.exp(logits) / torch.exp(logits).sum()
            p = values["target_probabilities"][row, k].double()
            label = int(values["labels"][row, k])
            if label >= 0:
                ce -= w * math.log(float(q[label]))
                ce_weights += w
            distance = float((q - p).abs().sum()) + OUTSIDE
            l1 += w * distance
            soft, z = 1 - distance / 2, float(values["confidence_logits"][row, k])
            c = 1 / (1 + math.exp(-z))
            bce -= w * (soft * math.log(c) + (1 - soft) * math.log(1 - c))
            weights += w
    return ce / ce_weights, l1 / weights, bce / weights


@pytest.mark.parametrize(("decay", "used"), [(None, 3.0), (4.0, 4.0)])
def test_values_equal_float64(decay: float | None, used: float) -> None:
    values = batch()
    loss = drafter_loss(**values, weights=LossWeights(decay=decay))
    ce, l1, bce = expected(values, used)
    assert float(loss.cross_entropy) == pytest.approx(ce, rel=1e-5)
    assert float(loss.l1) == pytest.approx(l1, rel=1e-5)
    assert float(loss.confidence) == pytest.approx(bce, rel=1e-5)
    assert float(loss.total) == pytest.approx(0.1 * ce + 0.9 * l1 + 1.0 * bce, rel=1e-5)


def test_weights_fall_by_e_over_the_block() -> None:
    for gamma in (5, 7):
        expected_weights = [math.exp(-(k - 1) / gamma) for k in range(1, gamma + 1)]
        assert LossWeights().position_weights(gamma).tolist() == pytest.approx(expected_weights)
    of_deepspec = [math.exp(-(k - 1) / 4.0) for k in range(1, 8)]
    assert LossWeights(decay=4.0).position_weights(7).tolist() == pytest.approx(of_deepspec)


def test_soft_labels_are_the_overlap() -> None:
    values = batch()
    loss = drafter_loss(**values, weights=LossWeights())
    q = torch.softmax(values["draft_logits"], dim=-1)
    overlap = torch.minimum(q, values["target_probabilities"]).sum(-1)
    inside = values["mask"]
    assert torch.allclose(loss.soft_labels[inside], overlap[inside], atol=1e-6)
    assert not loss.soft_labels.requires_grad


def gradients(values: dict[str, Any], weights: LossWeights) -> tuple[Tensor, Tensor]:
    draft = values["draft_logits"].clone().requires_grad_()
    confidence = values["confidence_logits"].clone().requires_grad_()
    loss = drafter_loss(
        **{**values, "draft_logits": draft, "confidence_logits": confidence}, weights=weights
    )
    loss.total.backward()
    none = torch.zeros(1)
    return (
        none if draft.grad is None else draft.grad,
        none if confidence.grad is None else confidence.grad,
    )


def test_the_confidence_loss_moves_no_distribution() -> None:
    draft, confidence = gradients(batch(), LossWeights(cross_entropy=0.0, l1=0.0))
    assert not draft.any()
    assert confidence.any()
    draft, confidence = gradients(batch(), LossWeights(confidence=0.0))
    assert draft.any()
    assert not confidence.any()


def test_gradients_are_those_of_the_values() -> None:
    """Finite differences in float64; the label is held fixed, as it is detached."""
    values = batch(torch.float64)

    def total(draft: Tensor, confidence: Tensor) -> Tensor:
        given = {**values, "draft_logits": draft, "confidence_logits": confidence}
        fixed = drafter_loss(**given, weights=LossWeights(confidence=0.0)).total
        held = drafter_loss(
            **{**given, "draft_logits": values["draft_logits"]}, weights=LossWeights()
        )
        return fixed + held.confidence

    draft = values["draft_logits"].clone().requires_grad_()
    confidence = values["confidence_logits"].clone().requires_grad_()
    assert torch.autograd.gradcheck(total, (draft, confidence))


def test_masked_positions_count_nothing_whatever_they_hold() -> None:
    values = batch()
    clean = drafter_loss(**values, weights=LossWeights())
    spoiled = {name: value.clone() for name, value in values.items()}
    spoiled["target_probabilities"][1, 2] = float("inf")
    spoiled["draft_logits"][1, 2] = 50.0
    loss = drafter_loss(**spoiled, weights=LossWeights())
    assert float(loss.total) == pytest.approx(float(clean.total), rel=1e-6)
    draft, _ = gradients(spoiled, LossWeights())
    assert draft.isfinite().all()
    assert not draft[1, 2].any()


def test_equal_and_disjoint_distributions() -> None:
    logits = torch.tensor([[[2.0, 0.0, -1.0]]])
    options: dict[str, Any] = {
        "confidence_logits": None,
        "labels": torch.tensor([[0]]),
        "mask": torch.tensor([[True]]),
        "weights": LossWeights(),
    }
    equal = drafter_loss(logits, target_probabilities=torch.softmax(logits, -1), **options)
    assert float(equal.l1) == pytest.approx(0.0, abs=1e-6)
    assert float(equal.soft_labels) == pytest.approx(1.0, abs=1e-6)
    elsewhere = drafter_loss(logits, target_probabilities=torch.zeros(1, 1, 3), **options)
    assert float(elsewhere.l1) == pytest.approx(2.0, rel=1e-5)  # un-halved
    assert float(elsewhere.soft_labels) == 0.0
    assert float(elsewhere.confidence) == 0.0


def test_r13_saturated_logits_have_a_finite_loss() -> None:
    loss: DrafterLoss = drafter_loss(
        torch.tensor([[[80.0, 0.0]]]),
        torch.tensor([[40.0]]),
        torch.tensor([[[0.0, 1.0]]]),
        torch.tensor([[1]]),
        torch.tensor([[True]]),
        LossWeights(),
    )
    assert float(loss.confidence) == pytest.approx(40.0, rel=1e-5)
    assert float(loss.cross_entropy) == pytest.approx(80.0, rel=1e-5)


def test_nothing_valid_is_a_loss_of_zero() -> None:
    values = batch()
    loss = drafter_loss(
        **{**values, "mask": torch.zeros(2, 3, dtype=torch.bool)}, weights=LossWeights()
    )
    assert float(loss.total) == 0.0


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cross_entropy": -0.1}, "cross_entropy"),
        ({"l1": float("nan")}, "l1"),
        ({"confidence": float("inf")}, "confidence"),
        ({"decay": 0.0}, "decay"),
        ({"decay": -4.0}, "decay"),
    ],
)
def test_wrong_weights_are_named(options: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        LossWeights(**options)
    assert caught.value.field == field


@pytest.mark.parametrize("field", ["target_probabilities", "labels", "mask"])
def test_shapes_must_belong_together(field: str) -> None:
    values = batch()
    with pytest.raises(DistributionError) as caught:
        drafter_loss(**{**values, field: values[field][:, :2]}, weights=LossWeights())
    assert caught.value.field == field


def from_logits() -> dict[str, Any]:
    """The blocks of :func:`batch`, the target by its logits over a larger vocabulary."""
    values = batch()
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(3)) * 2
    del values["target_probabilities"]
    return {
        **values,
        "target_logits": logits[..., :5],
        "target_log_normalizer": logits.logsumexp(-1),
    }


def test_a_target_given_by_its_logits_changes_no_bit() -> None:
    values = from_logits()
    found = drafter_loss_from_logits(**values, weights=LossWeights())
    logits, normalizer = values.pop("target_logits"), values.pop("target_log_normalizer")
    values["target_probabilities"] = (logits - normalizer[..., None]).exp()
    expected_loss = drafter_loss(**values, weights=LossWeights())
    for name in ("total", "cross_entropy", "l1", "confidence", "soft_labels"):
        assert torch.equal(getattr(found, name), getattr(expected_loss, name)), name


@pytest.mark.parametrize("field", ["target_log_normalizer", "labels", "mask"])
def test_shapes_of_logits_must_belong_together(field: str) -> None:
    values = from_logits()
    with pytest.raises(DistributionError) as caught:
        drafter_loss_from_logits(**{**values, field: values[field][:, :2]}, weights=LossWeights())
    assert caught.value.field == field
