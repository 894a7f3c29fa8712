"""Labels through the dispatcher: calib's own on the CPU, kernels where they serve."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch

import heads.soft_labels
from calib import soft_labels as calib_labels
from calib.errors import ConfigurationError, DistributionError
from heads.soft_labels import decide_labels, soft_labels
from tests.heads.kernels.float64_labels import scores

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("rule", ["rejection", "exact_match", "greedy"])
@pytest.mark.parametrize("mode", ["sampled", "greedy"])
def test_on_the_cpu_it_is_calib_to_the_last_bit(rule: str, mode: str) -> None:
    draft, target = scores(4, 300, draft=torch.bfloat16, masked=True)
    options: dict[str, Any] = {"rule": rule, "draft_mode": mode, "temperature": 0.8}
    mine = soft_labels(draft, target, **options)
    assert torch.equal(mine, calib_labels.soft_labels(draft, target, **options))


def test_block_verification_goes_through() -> None:
    """Case M4: P(n ≥ 2 | x_1) follows from the drafted token."""
    draft = torch.tensor([[0.5, 0.5], [0.7, 0.3]])
    target = torch.tensor([[0.8, 0.2], [0.4, 0.6]])
    options: dict[str, Any] = {
        "rule": "block",
        "draft_mode": "sampled",
        "draft_kind": "probabilities",
        "target_kind": "probabilities",
        "drafted": torch.tensor([0, 1]),
    }
    mine = soft_labels(draft, target, **options)
    assert torch.equal(mine, calib_labels.soft_labels(draft, target, **options))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "on the CPU"),
        ({"rule": "block"}, "drafted tokens"),
        ({"rule": "block", "draft_mode": "greedy"}, "on the CPU"),
        ({"rule": "nonsense"}, "words"),
        ({"top_k": 5}, "top_k"),
        ({"top_p": 0.9}, "top_p"),
        ({"min_p": 0.1}, "min_p"),
        ({"draft_kind": "processed"}, "logits"),
        ({"draft_to_target": torch.arange(8)}, "different tokens"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_every_choice_has_its_reason(options: dict[str, Any], reason: str) -> None:
    rows = torch.zeros(2, 8)
    given = {"rule": "rejection", "draft_mode": "sampled", **options}
    assert reason in decide_labels(rows, rows, **given).reason


def test_errors_are_calibs() -> None:
    rows = torch.zeros(2, 8)
    with pytest.raises(ConfigurationError) as caught:
        soft_labels(rows, rows, rule="nonsense", draft_mode="sampled")
    assert caught.value.field == "rule"
    with pytest.raises(DistributionError):
        soft_labels(rows, rows[:, :5], rule="rejection", draft_mode="sampled")
    with pytest.raises(DistributionError):
        soft_labels(rows.long(), rows, rule="rejection", draft_mode="sampled")


def test_the_example_runs() -> None:
    assert doctest.testmod(heads.soft_labels).failed == 0
