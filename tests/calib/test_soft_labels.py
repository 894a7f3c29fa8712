"""Public label functions: reported cases, accuracy, memory, reduced vocabularies, refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import calib.soft_labels as module
from calib.errors import ConfigurationError, DistributionError
from calib.soft_labels import block_labels, soft_labels, soft_survival, token_acceptance

pytestmark = pytest.mark.torch

SAMPLED: dict[str, Any] = {"rule": "rejection", "draft_mode": "sampled"}
PROBABILITIES: dict[str, Any] = {"draft_kind": "probabilities", "target_kind": "probabilities"}
MINUS_INFINITY = float("-inf")


def pair(*shape: int, seed: int = 0, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draft = torch.randn(*shape, generator=generator) * 3
    return draft, draft + torch.randn(*shape, generator=generator) * noise


def overlap64(draft: Tensor, target: Tensor, temperature: float = 1.0) -> Tensor:
    q = torch.softmax(draft.double() / temperature, -1)
    p = torch.softmax(target.double() / temperature, -1)
    return torch.minimum(q, p).sum(-1)


# ---- reported cases ----


def test_r29_one_number_per_rule() -> None:
    q, p = torch.tensor([0.6, 0.4]), torch.tensor([0.3, 0.7])
    for rule, mode, expected in [
        ("rejection", "sampled", 0.7),
        ("rejection", "greedy", 0.3),
        ("exact_match", "sampled", 0.46),
        ("exact_match", "greedy", 0.3),
        ("greedy", "greedy", 0.0),
    ]:
        found = soft_labels(q, p, rule=rule, draft_mode=mode, **PROBABILITIES)
        assert found.item() == pytest.approx(expected, abs=1e-6), (rule, mode)


def test_m5_greedy_target_sampled_draft() -> None:
    q, p = torch.tensor([0.6, 0.4]), torch.tensor([0.3, 0.7])
    found = soft_labels(q, p, rule="greedy", draft_mode="sampled", **PROBABILITIES)
    assert found.item() == pytest.approx(0.4, abs=1e-6)


def test_r30_labels_come_from_the_processed_distributions() -> None:
    q, p = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
    processed = soft_labels(q.log(), p.log(), top_k=2, **SAMPLED)
    assert processed.item() == pytest.approx(0.875, abs=1e-6)
    raw_draft = soft_labels(q.log(), torch.tensor([0.5, 0.5, 0.0]).log(), **SAMPLED)
    assert raw_draft.item() == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [7, 1000, 151_936])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_r33_identical_rows_are_exactly_one(
    dtype: torch.dtype, size: int, temperature: float
) -> None:
    draft = (pair(2, size)[0]).to(dtype)
    found = soft_labels(draft, draft.clone(), temperature=temperature, **SAMPLED)
    assert found.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("size", [7, 1000, 151_936])
def test_r33_disjoint_rows_are_exactly_zero(dtype: torch.dtype, size: int) -> None:
    draft, target = (side.to(dtype) for side in pair(2, size))
    draft[:, ::2] = MINUS_INFINITY
    target[:, 1::2] = MINUS_INFINITY
    assert soft_labels(draft, target, **SAMPLED).tolist() == [0.0, 0.0]


def test_r33_refused_and_clamped_rows() -> None:
    good = torch.tensor([[0.5, 0.5, 0.0]])
    with pytest.raises(DistributionError, match=r"target\[0\]: got 0\.8"):
        soft_labels(good, torch.tensor([[0.5, 0.3, 0.0]]), **SAMPLED, **PROBABILITIES)
    clamped = torch.tensor([[0.5, 0.5, -1e-9]])
    assert soft_labels(clamped, good, **SAMPLED, **PROBABILITIES).item() == 1.0
    masked = torch.full((1, 3), MINUS_INFINITY)
    with pytest.raises(DistributionError, match=r"draft\[0\]: got -inf"):
        soft_labels(masked, good, **SAMPLED)
    with pytest.raises(DistributionError, match=r"target\[0\]: got -inf"):
        soft_labels(good, masked, rule="greedy", draft_mode="greedy")


# ---- accuracy, dtype, memory ----


@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0, 6.0])
@pytest.mark.parametrize("size", [7, 1000, 49_152, 151_936])
def test_accuracy_against_float64(size: int, noise: float) -> None:
    draft, target = pair(4, 3, size, noise=noise)
    found = soft_labels(draft, target, **SAMPLED)
    assert found.dtype == torch.float32
    assert found.shape == (4, 3)
    assert torch.allclose(found.double(), overlap64(draft, target), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_accuracy_on_half_precision_inputs(dtype: torch.dtype) -> None:
    draft, target = (side.to(dtype) for side in pair(5, 20_001))
    found = soft_labels(draft, target, temperature=0.7, **SAMPLED)
    exact = overlap64(draft, target, 0.7)
    assert torch.allclose(found.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 13, 1000, 4096, 100_000])
def test_the_tile_size_does_not_matter(chunk: int) -> None:
    draft, target = pair(3, 1500)
    found = soft_labels(draft.double(), target.double(), chunk=chunk, **SAMPLED)
    assert torch.allclose(found, overlap64(draft, target), rtol=0, atol=1e-13)


def test_exact_match_against_float64() -> None:
    draft, target = pair(4, 5000, noise=0.5)
    expected = (torch.softmax(draft.double(), -1) * torch.softmax(target.double(), -1)).sum(-1)
    found = soft_labels(draft, target, rule="exact_match", draft_mode="sampled")
    assert torch.allclose(found.double(), expected, rtol=0, atol=1e-6)


def test_peaked_rows() -> None:
    draft = torch.tensor([[80.0, 0.0, 0.0], [0.0, 100.0, 0.0]])
    target = torch.tensor([[80.0, 80.0, 0.0], [100.0, 0.0, 0.0]])
    assert soft_labels(draft, target, **SAMPLED).tolist() == pytest.approx([0.5, 0.0], abs=1e-7)


MEMORY_SCRIPT = """
import resource, torch
from calib.soft_labels import soft_labels
torch.set_num_threads(1)
small = torch.zeros(1, 8, dtype=torch.bfloat16)
soft_labels(small, small, rule="rejection", draft_mode="sampled")
draft = torch.zeros(96, 151_936, dtype=torch.bfloat16)  # 28 MB; 56 MB in float32
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
soft_labels(draft, draft, rule="rejection", draft_mode="sampled", temperature=0.7)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_r82_no_full_float32_copy_of_the_vocabulary() -> None:
    command = [sys.executable, "-c", MEMORY_SCRIPT]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(answer.stdout) < 24.0  # MB: a few float32 tiles of 2 MB and their bookkeeping


def test_labels_carry_no_gradient() -> None:
    draft, target = pair(2, 50)
    assert not soft_labels(draft.requires_grad_(), target, **SAMPLED).requires_grad


# ---- modes ----


@pytest.mark.parametrize("rule", ["rejection", "exact_match", "greedy", "block"])
@pytest.mark.parametrize("mode", ["sampled", "greedy"])
def test_temperature_zero_is_greedy_on_both_sides(rule: str, mode: str) -> None:
    draft, target = pair(50, 20)
    agree = (draft.argmax(-1) == target.argmax(-1)).float()
    found = soft_labels(draft, target, rule=rule, draft_mode=mode, temperature=0.0)
    assert torch.equal(found, agree)
    assert 0.0 < agree.mean() < 1.0


def test_greedy_ties_go_to_the_lowest_id() -> None:
    draft = torch.tensor([[1.0, 5.0, 5.0]])
    same, other = torch.tensor([[0.0, 2.0, 2.0]]), torch.tensor([[0.0, 2.0, 2.5]])
    assert soft_labels(draft, same, rule="greedy", draft_mode="greedy").item() == 1.0
    assert soft_labels(draft, other, rule="greedy", draft_mode="greedy").item() == 0.0


@pytest.mark.parametrize("mode", ["sampled", "greedy"])
@pytest.mark.parametrize("rule", ["rejection", "exact_match", "greedy", "block"])
def test_block_labels_equal_the_single_functions(rule: str, mode: str) -> None:
    draft, target = pair(3, 4, 60)
    drafted = draft.argmax(-1)
    options: dict[str, Any] = {"rule": rule, "draft_mode": mode, "temperature": 0.8, "top_k": 30}
    labels = block_labels(draft, target, drafted, **options)
    conditional = soft_labels(draft, target, drafted=drafted, **options)
    assert torch.equal(labels.conditional, conditional)
    if labels.token_acceptance is None:
        assert (rule, mode) == ("block", "sampled")
        return
    acceptance = token_acceptance(draft, target, drafted, **options)
    assert torch.equal(labels.token_acceptance, acceptance)
    assert torch.equal(labels.survival, soft_survival(conditional, acceptance))


# ---- reduced draft vocabulary ----


def embedded(draft: Tensor, mapping: Tensor, size: int) -> Tensor:
    full = torch.full((*draft.shape[:-1], size), MINUS_INFINITY, dtype=draft.dtype)
    full[..., mapping] = draft
    return full


@pytest.mark.parametrize("rule", ["rejection", "exact_match", "greedy", "block"])
@pytest.mark.parametrize("mode", ["sampled", "greedy"])
def test_a_reduced_vocabulary_equals_a_full_one_with_masked_tokens(rule: str, mode: str) -> None:
    target = pair(6, 3, 900, seed=5)[1].double()
    mapping = torch.randperm(900, generator=torch.Generator().manual_seed(1))[:300]
    draft = (target + pair(6, 3, 900, seed=6)[0].double() * 0.2)[..., mapping]
    drafted = mapping[draft.argmax(-1)]
    options: dict[str, Any] = {"rule": rule, "draft_mode": mode, "chunk": 128}
    found = block_labels(draft, target, drafted, draft_to_target=mapping, **options)
    expected = block_labels(embedded(draft, mapping, 900), target, drafted, **options)
    for one, other in (
        (found.conditional, expected.conditional),
        (found.token_acceptance, expected.token_acceptance),
        (found.survival, expected.survival),
    ):
        if one is None or other is None:
            assert (rule, mode) == ("block", "sampled")
            continue
        assert torch.allclose(one, other, rtol=0, atol=1e-12, equal_nan=True)


def test_target_mass_outside_the_draft_vocabulary_is_never_accepted() -> None:
    draft = torch.tensor([[0.5, 0.5]])
    target = torch.tensor([[0.2, 0.6, 0.2]])  # ids 0 and 2 can be drafted
    found = soft_labels(
        draft, target, draft_to_target=torch.tensor([2, 0]), **SAMPLED, **PROBABILITIES
    )
    assert found.item() == pytest.approx(0.4, abs=1e-6)
    outside = soft_labels(
        draft, target, rule="greedy", draft_mode="sampled", draft_to_target=torch.tensor([2, 0]),
        **PROBABILITIES,
    )  # fmt: skip
    assert outside.item() == 0.0


# ---- refusals ----


def test_words_are_checked() -> None:
    draft, target = pair(2, 5)
    with pytest.raises(ConfigurationError, match="`rejection`, `greedy`"):
        soft_labels(draft, target, rule="lossless", draft_mode="sampled")
    with pytest.raises(ConfigurationError, match="draft_mode"):
        soft_labels(draft, target, rule="rejection", draft_mode="beam")
    with pytest.raises(ConfigurationError, match="target_kind"):
        soft_labels(draft, target, target_kind="odds", **SAMPLED)
    with pytest.raises(ConfigurationError, match="drafted"):
        soft_labels(draft, target, rule="block", draft_mode="sampled")


def test_shapes_and_tokens_are_checked() -> None:
    draft, target = pair(2, 5)
    with pytest.raises(DistributionError, match="leading axes"):
        soft_labels(draft, target[:1], **SAMPLED)
    with pytest.raises(DistributionError, match="draft_to_target"):
        soft_labels(draft[:, :4], target, **SAMPLED)
    for drafted in (torch.tensor([1]), torch.tensor([0.0, 1.0])):
        with pytest.raises(DistributionError, match="token ids"):
            token_acceptance(draft, target, drafted, **SAMPLED)
    with pytest.raises(DistributionError, match=r"drafted: got 5"):
        token_acceptance(draft, target, torch.tensor([0, 5]), **SAMPLED)
    with pytest.raises(DistributionError, match="block verification"):
        soft_labels(
            draft[0], target[0], drafted=torch.tensor(1), rule="block", draft_mode="sampled"
        )


def test_a_token_that_could_not_be_drafted_is_refused() -> None:
    draft, target = torch.tensor([[3.0, 2.0, 1.0]]), torch.zeros(1, 3)
    with pytest.raises(DistributionError, match=r"drafted: got 2; give tokens that the draft"):
        token_acceptance(draft, target, torch.tensor([2]), top_k=2, **SAMPLED)


def test_public_names() -> None:
    assert set(module.__all__) == {
        "AcceptanceRule",
        "BlockLabels",
        "DraftMode",
        "LabelOptions",
        "ScoreKind",
        "block_labels",
        "soft_labels",
        "soft_survival",
        "token_acceptance",
    }
