"""Gradients of the soft-label kernels against autograd in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heads.kernels.soft_label import Form, soft_label_gradient, soft_label_terms
from heads.reference import soft_label as reference
from tests.heads.kernels.float64_labels import MINUS_INFINITY, expected, scores

pytestmark = pytest.mark.torch

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
ONE = torch.ones(1)


def of_kernel(
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    per_distance: Tensor,
    per_log: Tensor | None,
    labels: Tensor | None,
    device: torch.device,
    **options: int | Form,
) -> Tensor:
    """The kernels' gradient, forward statistics included."""
    here = [v.to(device) for v in (draft, target, draft_temperature, target_temperature)]
    terms = soft_label_terms(*here, labels=None if labels is None else labels.to(device), **options)
    options.pop("form", None)
    return soft_label_gradient(
        per_distance.to(device),
        None if per_log is None else per_log.to(device),
        *here,
        None if labels is None else labels.to(device),
        terms.statistics,
        **options,
    ).cpu()


def of_float64(
    draft: Tensor,
    target: Tensor,
    draft_temperature: Tensor,
    target_temperature: Tensor,
    per_distance: Tensor,
    per_log: Tensor | None,
    labels: Tensor,
) -> Tensor:
    """Autograd's."""
    leaf = draft.double().requires_grad_()
    truth = expected(
        leaf,
        target,
        draft_temperature,
        target_temperature,
        labels=labels,
        confidence_logits=torch.zeros(len(draft)),
    )
    loss = (truth.distance * per_distance).sum()
    if per_log is not None:
        loss = loss + (truth.log_probability * per_log).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient


# (vocabulary, rows, draft, target, with labels, masked, form, block)
CASES = [
    (7, 1, FP32, FP32, True, False, Form.SPLIT, None),
    (7, 16, BF16, FP32, False, True, Form.SPLIT, None),
    (257, 3, FP16, FP16, True, True, Form.ONE_LAUNCH, None),
    (1000, 3, FP32, BF16, False, False, Form.SPLIT, 256),
    (1000, 1, BF16, BF16, True, False, Form.SPLIT, None),
    pytest.param(257, 64, FP32, FP32, True, True, Form.SPLIT, None, marks=pytest.mark.slow),
    pytest.param(49_152, 3, BF16, BF16, False, True, Form.SPLIT, 16_384, marks=pytest.mark.slow),
    pytest.param(151_936, 1, FP32, FP32, True, False, Form.SPLIT, 32_768, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("vocabulary", "rows", "draft_type", "target_type", "labelled", "masked", "form", "block"),
    CASES,
)
def test_gradients_equal_float64(
    vocabulary: int,
    rows: int,
    draft_type: torch.dtype,
    target_type: torch.dtype,
    labelled: bool,
    masked: bool,
    form: Form,
    block: int | None,
    device: torch.device,
) -> None:
    draft, target = scores(rows, vocabulary, draft=draft_type, target=target_type, masked=masked)
    generator = torch.Generator().manual_seed(5)
    q = 0.4 + torch.rand(rows, generator=generator)
    p = 0.4 + torch.rand(rows, generator=generator)
    labels = torch.ones(rows, dtype=torch.long)
    per_distance = torch.randn(rows, generator=generator)
    per_log = torch.randn(rows, generator=generator) if labelled else None
    options = {} if block is None else {"block": block}
    seen = of_kernel(
        draft, target, q, p, per_distance, per_log, labels, device, form=form, **options
    )
    truth = of_float64(draft, target, q, p, per_distance, per_log, labels)
    assert seen.dtype == draft_type
    # A stored gradient has its own type's rounding; beside it, 1e-5 of the row's largest.
    step = {FP32: 1e-5, FP16: 1e-3, BF16: 8e-3}[draft_type]
    bound = 1e-5 * truth.abs().amax(-1, keepdim=True) + step * truth.abs() + 1e-7
    assert ((seen.double() - truth).abs() <= bound).all()


def test_equal_rows_have_no_gradient(device: torch.device) -> None:
    draft, _ = scores(2, 500, draft=BF16)
    found = of_kernel(draft, draft.clone(), ONE, ONE, torch.ones(2), None, None, device)
    assert not found.any()


def test_a_greedy_target_and_a_greedy_draft(device: torch.device) -> None:
    draft, target = scores(3, 400)
    q, p = torch.tensor([1.0, 0.8, 0.0]), torch.tensor([0.0, 0.0, 1.0])
    labels = torch.tensor([0, 1, 2])
    weights = torch.tensor([1.0, -0.5, 2.0])
    seen = of_kernel(draft, target, q, p, weights, None, labels, device)
    truth = of_float64(draft, target, q, p, weights, None, labels)
    assert torch.allclose(seen[:2].double(), truth[:2], atol=1e-6, rtol=1e-5)
    assert not seen[2].any()  # an argmax does not move


def test_a_draft_that_is_certain_of_the_greedy_target_stays(device: torch.device) -> None:
    draft = torch.full((1, 300), MINUS_INFINITY).index_fill(1, torch.tensor([4]), 2.0)
    target, _ = scores(1, 300)
    target[0, 4] = 99.0
    found = of_kernel(draft, target, ONE, torch.zeros(1), torch.ones(1), None, None, device)
    assert not found.any()


def test_rows_that_do_not_count_get_nothing_whatever_they_hold(device: torch.device) -> None:
    draft, target = scores(3, 300)
    draft[1] = float("nan")
    weights = torch.tensor([1.0, 0.0, -2.0])
    labels = torch.tensor([1, 1, -1])
    found = of_kernel(draft, target, ONE, ONE, weights, weights, labels, device)
    assert found.isfinite().all()
    assert not found[1].any()
    assert found[2].any()


def test_tiles_change_nothing_but_rounding(device: torch.device) -> None:
    draft, target = scores(2, 900)
    weights = torch.tensor([1.0, -1.0])
    labels = torch.tensor([3, 4])
    arguments = (draft, target, ONE, ONE, weights, weights, labels, device)
    truth = of_kernel(*arguments)
    found = of_kernel(*arguments, block=128, span=256)
    assert torch.allclose(found, truth, atol=1e-7, rtol=1e-5)


def test_the_twins_agree(device: torch.device) -> None:
    draft, target = scores(4, 600, draft=BF16, masked=True)
    q, p = torch.tensor([1.0, 0.5, 0.0, 1.2]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    labels, per_log = torch.tensor([1, -1, 1, 1]), torch.tensor([0.5, 0.5, 1.0, 0.0])
    per_distance = torch.tensor([1.0, 0.0, -1.0, 2.0])
    terms = reference.soft_label_terms(draft, target, q, p, labels=labels)
    theirs = reference.soft_label_gradient(
        per_distance, per_log, draft, target, q, p, labels, terms.statistics
    )
    ours = of_kernel(draft, target, q, p, per_distance, per_log, labels, device)
    assert torch.allclose(ours.float(), theirs.float(), atol=1e-6, rtol=8e-3)
