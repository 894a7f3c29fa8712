"""Losses and labels of training through the kernels: the reference's numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from calib import soft_labels as calib_labels
from calib.errors import DistributionError
from heads.kernel_dispatch import VARIABLE
from heads.losses import DrafterLoss, LossWeights, drafter_loss_from_logits
from heads.soft_labels import decide_labels, soft_labels
from tests.heads.kernels.float64_labels import scores

pytestmark = pytest.mark.torch


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "triton")


def batch(device: torch.device) -> dict[str, Any]:
    """Two blocks of γ = 3 over 90 of the target's 130 tokens; two positions are outside."""
    draft, whole = scores(6, 130)
    labels = torch.tensor([[0, 4, -1], [2, 1, 89]])
    values: dict[str, Any] = {
        "draft_logits": draft[:, :90].reshape(2, 3, 90),
        "confidence_logits": torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, -3.0]]),
        "target_logits": whole[:, :90].reshape(2, 3, 90),
        "target_log_normalizer": whole.logsumexp(-1).reshape(2, 3),
        "labels": labels,
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
    }
    return {name: value.to(device) for name, value in values.items()}


def with_gradients(values: dict[str, Any]) -> tuple[DrafterLoss, Tensor, Tensor]:
    draft = values["draft_logits"].clone().requires_grad_()
    confidence = values["confidence_logits"].clone().requires_grad_()
    leaves = {**values, "draft_logits": draft, "confidence_logits": confidence}
    loss = drafter_loss_from_logits(**leaves, weights=LossWeights())
    loss.total.backward()
    return loss, draft.grad, confidence.grad


@pytest.mark.parametrize("spoiled", [False, True])
def test_the_drafter_loss_is_the_same(
    spoiled: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = batch(device)
    if spoiled:  # what lies outside the mask may be anything
        values["target_logits"][1, 2] = float("nan")
    monkeypatch.setenv(VARIABLE, "reference")
    expected, draft, confidence = with_gradients(values)
    monkeypatch.setenv(VARIABLE, "triton")
    found, draft_found, confidence_found = with_gradients(values)
    for name in ("total", "cross_entropy", "l1", "confidence"):
        mine, theirs = getattr(found, name).item(), getattr(expected, name).item()
        assert mine == pytest.approx(theirs, rel=1e-5), name
    inside = values["mask"]
    assert torch.allclose(found.soft_labels[inside], expected.soft_labels[inside], atol=1e-6)
    assert not found.soft_labels.requires_grad
    if not spoiled:  # autograd's own gradient of a spoiled row is not a number
        assert torch.allclose(draft_found, draft, atol=1e-7, rtol=1e-4)
    assert draft_found.isfinite().all()
    assert torch.allclose(confidence_found, confidence, atol=1e-6)


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("rule", ["rejection", "exact_match", "greedy"])
@pytest.mark.parametrize("mode", ["sampled", "greedy"])
def test_labels_are_calibs(rule: str, mode: str, device: torch.device) -> None:
    draft, target = scores(2, 300, draft=torch.bfloat16, masked=True)
    options: dict[str, Any] = {"rule": rule, "draft_mode": mode, "temperature": 0.8}
    here = draft.to(device), target.to(device)
    assert decide_labels(*here, **options).uses_kernels
    expected = calib_labels.soft_labels(draft, target, **options)
    found = soft_labels(*here, **options)
    assert found.dtype == expected.dtype
    assert torch.allclose(found.cpu(), expected, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("with_kernels")
def test_rows_that_are_no_distribution_are_refused(device: torch.device) -> None:
    draft, target = (v.reshape(2, 2, 50).to(device) for v in scores(4, 50))
    draft[1, 0, 3] = float("nan")
    with pytest.raises(DistributionError, match=r"row \[1, 0\]"):
        soft_labels(draft, target, rule="rejection", draft_mode="sampled")
