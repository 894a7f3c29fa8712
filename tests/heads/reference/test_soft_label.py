"""The eager twin of the soft-label kernels against float64 and against ``calib.soft_labels``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from calib.soft_labels import soft_labels
from heads.reference.soft_label import CONFIDENCE_SLOPE, soft_label_gradient, soft_label_terms
from tests.heads.kernels.float64_labels import MINUS_INFINITY, expected, scores

pytestmark = pytest.mark.torch

ONE = torch.ones(1)


@pytest.mark.parametrize("vocabulary", [1, 7, 257, 1000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("exact_match", [False, True])
def test_equal_to_float64(vocabulary: int, dtype: torch.dtype, exact_match: bool) -> None:
    draft, target = scores(6, vocabulary, draft=dtype, target=dtype, masked=True)
    q = torch.tensor([1.0, 0.0, 0.5, 1.0, 2.0, 0.0])
    p = torch.tensor([1.0, 1.0, 0.5, 0.0, 1.0, 0.0])
    labels = torch.full((6,), min(1, vocabulary - 1))
    labels[5] = -1
    logits = torch.tensor([0.0, 3.0, -40.0, 40.0, 1.0, -1.0])
    found = soft_label_terms(
        draft, target, q, p, labels=labels, confidence_logits=logits, exact_match=exact_match
    )
    truth = expected(
        draft, target, q, p, labels=labels, confidence_logits=logits, exact_match=exact_match
    )
    step = 1e-12 if dtype is torch.float64 else 1e-6
    assert torch.allclose(found.label.double(), truth.label, atol=step, rtol=0)
    assert torch.allclose(found.confidence_error.double(), truth.confidence_error, atol=40 * step)
    slope = torch.sigmoid(logits.double()) - truth.label
    assert torch.allclose(found.statistics[CONFIDENCE_SLOPE].double(), slope, atol=2 * step)
    warm = q > 0
    wanted = truth.log_probability[warm]
    assert torch.allclose(found.log_probability[warm].double(), wanted, atol=10 * step, rtol=step)
    if exact_match:
        assert found.distance.shape == (0,)
    else:
        assert torch.allclose(found.distance.double(), truth.distance, atol=2 * step, rtol=0)


@pytest.mark.parametrize(
    ("rule", "mode", "cold", "exact_match"),
    [
        ("rejection", "sampled", (False, False), False),
        ("rejection", "greedy", (True, False), False),
        ("greedy", "sampled", (False, True), False),
        ("greedy", "greedy", (True, True), False),
        ("exact_match", "sampled", (False, False), True),
        ("exact_match", "greedy", (True, False), True),
    ],
)
def test_rules_are_those_of_calib(
    rule: str, mode: str, cold: tuple[bool, bool], exact_match: bool
) -> None:
    draft, target = scores(4, 300, draft=torch.bfloat16, masked=True)
    warm = torch.tensor([0.7])
    temperatures = [torch.zeros(1) if side else warm for side in cold]
    found = soft_label_terms(draft, target, *temperatures, exact_match=exact_match).label
    theirs = soft_labels(draft, target, rule=rule, draft_mode=mode, temperature=0.7)
    assert torch.allclose(found, theirs, atol=1e-6, rtol=0)


def test_r33_ends_are_exact_and_broken_rows_are_nan() -> None:
    draft, _ = scores(3, 101, draft=torch.bfloat16)
    assert soft_label_terms(draft, draft.float(), ONE, ONE).label.tolist() == [1.0, 1.0, 1.0]
    left = torch.arange(101) < 50
    apart = [draft.masked_fill(side, MINUS_INFINITY) for side in (left, ~left)]
    assert soft_label_terms(*apart, ONE, ONE).label.tolist() == [0.0, 0.0, 0.0]
    draft[0, 3], draft[1] = float("nan"), MINUS_INFINITY
    _, target = scores(3, 101)
    for temperature in (ONE, torch.zeros(1)):
        label = soft_label_terms(draft, target, temperature, ONE).label
        assert label.isnan().tolist() == [True, True, False]
    assert soft_label_terms(target, target, -ONE, ONE).label.isnan().all()


def test_known_log_sum_exps_and_mass_outside() -> None:
    draft, whole = scores(3, 900)
    p = torch.softmax(whole.double(), -1)
    q = torch.softmax(draft[:, :700].double(), -1)
    found = soft_label_terms(
        draft[:, :700],
        whole[:, :700],
        ONE,
        ONE,
        draft_log_sum_exp=draft[:, :700].double().logsumexp(-1).float(),
        target_log_sum_exp=whole.double().logsumexp(-1).float(),
        outside=True,
    )
    distance = (q - p[:, :700]).abs().sum(-1) + p[:, 700:].sum(-1)
    assert torch.allclose(found.distance.double(), distance, atol=1e-5)
    assert torch.allclose(found.label.double(), 1 - distance / 2, atol=1e-5)
    cold = soft_label_terms(draft, whole, torch.zeros(1), ONE, draft_log_sum_exp=torch.zeros(3))
    assert cold.label.isnan().all()


@pytest.mark.parametrize("block", [None, 16, 1000])
def test_gradients_equal_autograd_in_float64(block: int | None) -> None:
    draft, target = scores(5, 333, draft=torch.float64, target=torch.float64, masked=True)
    q, p = torch.tensor([1.0, 0.5, 1.0, 0.7, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.7, 1.0])
    labels = torch.tensor([1, -1, 1, 1, 1])
    per_distance = torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0]).double()
    per_log = torch.tensor([0.3, 1.0, 0.0, -1.0, 0.0]).double()
    leaf = draft.clone().requires_grad_()
    truth = expected(leaf, target, q, p, labels=labels, confidence_logits=torch.zeros(5))
    loss = (truth.distance * per_distance + truth.log_probability * per_log)[:4].sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    terms = soft_label_terms(draft, target, q, p, labels=labels, block=block)
    found = soft_label_gradient(
        per_distance, per_log, draft, target, q, p, labels, terms.statistics, block=block
    )
    assert torch.allclose(found[:4], gradient[:4], atol=1e-9)
    assert not found[4].any()


def test_silent_rows_are_left_alone() -> None:
    draft, target = scores(2, 50, draft=torch.bfloat16)
    draft[0] = float("nan")
    terms = soft_label_terms(draft, target, ONE, ONE)
    per_distance = torch.tensor([0.0, 1.0])
    found: Tensor = soft_label_gradient(
        per_distance, None, draft, target, ONE, ONE, None, terms.statistics
    )
    assert found.dtype == torch.bfloat16
    assert not found[0].any()
    assert found[1].isfinite().all()


def test_tiles_change_nothing_but_rounding() -> None:
    draft, target = scores(3, 500)
    whole = soft_label_terms(draft, target, ONE, ONE).label
    assert torch.allclose(
        soft_label_terms(draft, target, ONE, ONE, block=7).label, whole, atol=1e-7
    )
