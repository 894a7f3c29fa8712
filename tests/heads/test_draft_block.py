"""Inputs, workspace and keys of a draft block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from calib.errors import ConfigurationError
from heads.draft_block import DraftBlockInputs, DraftBlockWorkspace, check_block, request_key
from heads.draft_block_weights import DraftBlockWeights

pytestmark = pytest.mark.torch

WEIGHTS = DraftBlockWeights(
    "vanilla",
    torch.zeros(30, 4),
    torch.zeros(20, 4),
    confidence_hidden=torch.zeros(6),
    confidence_bias=torch.zeros(1),
)


def inputs(rows: int = 3, gamma: int = 2, **changes: Any) -> DraftBlockInputs:
    parts: dict[str, Any] = {
        "anchors": torch.zeros(rows, dtype=torch.long),
        "hidden": torch.zeros(rows, gamma, 6),
        "base_logits": torch.zeros(rows, gamma, 20),
        "temperatures": torch.zeros(rows),
        "request_keys": torch.zeros(rows, dtype=torch.long),
        "positions": torch.zeros(rows, dtype=torch.long),
        "slopes": torch.ones(gamma),
        "intercepts": torch.zeros(rows, gamma),
        **changes,
    }
    return DraftBlockInputs(**parts)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("anchors", torch.zeros(4, dtype=torch.long)),
        ("temperatures", torch.zeros(3, 1)),
        ("slopes", torch.ones(3)),
        ("intercepts", torch.zeros(2, 2)),
        ("base_logits", torch.zeros(3, 1, 20)),
        ("base_logits", torch.zeros(3, 2, 40)[..., ::2]),
        ("hidden", torch.zeros(6, 2, 3).transpose(0, 2)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(field: str, value: torch.Tensor) -> None:
    with pytest.raises(ConfigurationError) as caught:
        inputs(**{field: value})
    assert caught.value.field == field


def test_parts_of_different_sizes_are_refused() -> None:
    workspace = DraftBlockWorkspace.allocate(WEIGHTS, 4, 2)
    check_block(WEIGHTS, inputs(), workspace)
    wrong = [
        (WEIGHTS, inputs(rows=5), "hidden"),
        (WEIGHTS, inputs(gamma=3), "hidden"),
        (WEIGHTS, inputs(base_logits=torch.zeros(3, 2, 21)), "base_logits"),
        (WEIGHTS, inputs(hidden=torch.zeros(3, 2, 7)), "hidden"),
        (replace(WEIGHTS, w1=torch.zeros(30, 4, device="meta")), inputs(), "device"),
    ]
    for weights, given, field in wrong:
        with pytest.raises(ConfigurationError) as caught:
            check_block(weights, given, workspace)
        assert caught.value.field == field


def test_a_workspace_holds_what_was_asked_for() -> None:
    plain = DraftBlockWorkspace.allocate(WEIGHTS, 4, 2)
    assert (plain.capacity, plain.gamma) == (4, 2)
    assert plain.partials is None
    assert plain.results.logits is None
    assert plain.results.log_sum_exp is None
    full = DraftBlockWorkspace.allocate(WEIGHTS, 4, 2, logits=torch.bfloat16, log_sum_exp=True)
    assert full.results.logits is not None
    assert full.results.logits.shape == (4, 2, 20)
    assert full.results.logits.dtype == torch.bfloat16
    output = full.output(3)
    assert output.tokens.shape == (3, 2)
    assert output.log_sum_exp is not None
    assert output.log_sum_exp.shape == (3, 2)
    assert output.tokens.data_ptr() == full.results.tokens.data_ptr()
    bare = replace(WEIGHTS, confidence_hidden=None, confidence_bias=None)
    assert DraftBlockWorkspace.allocate(bare, 4, 2).results.survival is None


@pytest.mark.parametrize(
    "changes", [{"capacity": 0}, {"gamma": 0}, {"logits": torch.float16}], ids=str
)
def test_impossible_workspaces_are_refused(changes: dict[str, Any]) -> None:
    options: dict[str, Any] = {"capacity": 4, "gamma": 2, **changes}
    with pytest.raises(ConfigurationError):
        DraftBlockWorkspace.allocate(WEIGHTS, **options)


def test_keys_tell_requests_and_runs_apart() -> None:
    keys = {request_key(seed, request) for seed in (0, 1, 2**32 - 1) for request in range(50)}
    assert len(keys) == 150
    assert all(-(1 << 63) <= key < 1 << 63 for key in keys)
    torch.tensor(sorted(keys))  # fits a long tensor
    assert request_key(3, 5) == request_key(3, 5) == (3 << 32) + 5
    for seed, request in ((-1, 0), (0, -1), (2**32, 0), (0, 2**32)):
        with pytest.raises(ConfigurationError):
            request_key(seed, request)
