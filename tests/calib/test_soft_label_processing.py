"""Tiles of a processed distribution against one plain softmax, sort and cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import calib.soft_label_processing as module
from calib.errors import ConfigurationError, DistributionError
from calib.soft_label_processing import ProcessedDistribution, Processing, ScoreKind
from heads.sampling import SamplingParameters, processed_probabilities

pytestmark = pytest.mark.torch

CUTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 5000},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"min_p": 0.05},
    {"min_p": 0.999},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 1.3, "top_k": 300, "top_p": 0.8, "min_p": 0.02},
    {"top_p": 0.99, "min_p": 0.1},
]


def rows(
    *shape: int, seed: int = 0, scale: float = 3.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def all_probabilities(side: ProcessedDistribution) -> Tensor:
    found = torch.full((side.rows, side.vocabulary), torch.nan, dtype=side.dtype)
    for where, tokens in side.tiles():
        found[where, tokens] = side.probabilities(where, tokens)
    return found


def distribution(scores: Tensor, kind: ScoreKind = ScoreKind.LOGITS, **cuts: Any) -> Tensor:
    chunk = cuts.pop("chunk", 97)
    return all_probabilities(
        ProcessedDistribution("target", scores, kind, Processing(**cuts), chunk)
    )


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several row blocks and several tiles a row even on small inputs."""
    monkeypatch.setattr(module, "_CPU_TILE", 400)
    monkeypatch.setattr(module, "_TOP_P_CANDIDATES", 8)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_equals_the_straightforward_reference(cuts: dict[str, Any], dtype: torch.dtype) -> None:
    logits = rows(9, 1000, dtype=dtype)
    expected = processed_probabilities(logits, SamplingParameters(**cuts))
    assert torch.allclose(distribution(logits, **cuts), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_flat_rows_need_every_candidate(cuts: dict[str, Any]) -> None:
    logits = rows(3, 700, scale=1e-3)
    expected = processed_probabilities(logits, SamplingParameters(**cuts))
    assert torch.allclose(distribution(logits, **cuts), expected, rtol=0, atol=1e-6)


@pytest.mark.property
@given(
    logits=st.lists(st.integers(-6, 6), min_size=1, max_size=12),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.37, 0.71, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.011, 0.27]),
)
def test_equals_the_reference_with_many_ties(
    logits: list[int], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    cuts: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
    }
    scores = torch.tensor([logits], dtype=torch.float32)
    expected = processed_probabilities(scores, SamplingParameters(**cuts))
    assert torch.allclose(distribution(scores, **cuts), expected, rtol=0, atol=1e-6)


def test_top_p_keeps_the_lowest_ids_among_equals() -> None:
    logits = torch.tensor([[0.0, 5.0, 0.0, 0.0, 0.0]])
    found = distribution(logits, top_p=0.985)  # e^5 holds 0.97375, each of the rest 0.00656
    assert (found > 0).tolist() == [[True, True, True, False, False]]
    assert found.sum().item() == pytest.approx(1.0, abs=1e-6)


def test_top_k_keeps_all_tied_with_the_last() -> None:
    found = distribution(torch.tensor([[1.0, 1.0, 2.0, 0.0]]), top_k=2)
    assert (found > 0).tolist() == [[True, True, True, False]]


@pytest.mark.parametrize("cuts", [{}, {"temperature": 0.7, "top_k": 30, "top_p": 0.9}], ids=str)
def test_probabilities_are_processed_as_the_logits_they_came_from(cuts: dict[str, Any]) -> None:
    logits = rows(4, 300).double()
    from_logits = distribution(logits, **cuts)
    found = distribution(torch.softmax(logits, -1), ScoreKind.PROBABILITIES, **cuts)
    assert torch.allclose(found, from_logits, rtol=0, atol=1e-12)


def test_processed_probabilities_are_taken_as_they_are() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]])
    found = distribution(p, ScoreKind.PROCESSED, temperature=0.2, top_k=1)
    assert torch.allclose(found, p, rtol=0, atol=1e-7)


def test_no_tile_is_larger_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CPU_TILE", 64 * 4)
    side = ProcessedDistribution("draft", rows(10, 1000), ScoreKind.LOGITS, Processing(), 64)
    shapes = {
        (where.stop - where.start, tokens.stop - tokens.start) for where, tokens in side.tiles()
    }
    assert shapes == {(4, 64), (2, 64), (4, 40), (2, 40)}


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_single_tokens_equal_the_tiles(cuts: dict[str, Any]) -> None:
    side = ProcessedDistribution("draft", rows(6, 333), ScoreKind.LOGITS, Processing(**cuts), 100)
    full = all_probabilities(side)
    for tokens in (side.best_tokens(), torch.arange(6) * 55):
        expected = full.gather(-1, tokens[:, None]).squeeze(-1).double()
        assert torch.allclose(side.probability_of(tokens), expected, rtol=1e-6, atol=1e-9)


def test_best_token_is_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [-2.0, -2.0, -2.0]])
    side = ProcessedDistribution("draft", logits, ScoreKind.LOGITS, Processing(temperature=0.0))
    assert side.best_tokens().tolist() == [1, 0]


def test_huge_and_masked_logits() -> None:
    logits = torch.tensor([[3e4, 3e4 - 1.0, float("-inf")], [-3e4, float("-inf"), -3e4]])
    found = distribution(logits, chunk=1)
    expected = torch.tensor([[0.7310586, 0.2689414, 0.0], [0.5, 0.0, 0.5]])
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


def test_a_low_temperature_keeps_its_precision() -> None:
    logits = torch.tensor([[20.0, 19.99]])
    exact = torch.softmax(logits.double() / 0.01, -1)
    assert torch.allclose(distribution(logits, temperature=0.01).double(), exact, atol=1e-6, rtol=0)


def test_no_rows() -> None:
    for cuts in ({}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}):
        assert distribution(torch.zeros(0, 5), **cuts).shape == (0, 5)


@pytest.mark.parametrize(
    ("bad", "shown"),
    [(float("nan"), "nan"), (float("inf"), "inf")],
)
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_a_logit_that_is_no_number_is_refused(bad: float, shown: str, temperature: float) -> None:
    logits = rows(2, 3, 50)
    logits[1, 2, 17] = bad
    processing = Processing(temperature=temperature)
    with pytest.raises(DistributionError, match=rf"target\[1, 2\]: got {shown}"):
        ProcessedDistribution("target", logits, ScoreKind.LOGITS, processing, 16).best_tokens()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_r33_a_row_of_minus_infinity_only_is_refused(temperature: float) -> None:
    logits = rows(3, 20)
    logits[1] = float("-inf")
    processing = Processing(temperature=temperature)
    with pytest.raises(DistributionError, match=r"draft\[1\]: got -inf"):
        ProcessedDistribution("draft", logits, ScoreKind.LOGITS, processing, 8).best_tokens()


@pytest.mark.parametrize("kind", [ScoreKind.PROBABILITIES, ScoreKind.PROCESSED])
def test_r33_probabilities_must_be_a_distribution(kind: ScoreKind) -> None:
    with pytest.raises(DistributionError, match=r"target\[1\]: got 0\.8"):
        distribution(torch.tensor([[0.5, 0.5], [0.5, 0.3]]), kind)
    with pytest.raises(DistributionError, match=r"target\[0\]: got -0\.1"):
        distribution(torch.tensor([[1.1, -0.1]]), kind)
    with pytest.raises(DistributionError, match="got nan"):
        distribution(torch.tensor([[1.0, float("nan")]]), kind)
    with pytest.raises(DistributionError, match=r"got 0\.0"):
        distribution(torch.zeros(1, 4), kind)
    clamped = distribution(torch.tensor([[0.7, 0.3, -1e-9]]), kind)
    assert torch.allclose(clamped, torch.tensor([[0.7, 0.3, 0.0]]), rtol=0, atol=1e-7)
    assert clamped[0, 2] == 0.0


def test_rounded_probabilities_are_no_mistake() -> None:
    p = torch.softmax(rows(5, 400), -1)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        found = distribution(p.to(dtype), ScoreKind.PROBABILITIES)
        assert torch.allclose(found.sum(-1), torch.ones(5), rtol=0, atol=1e-6)


def test_arguments_are_checked() -> None:
    for wrong in ({"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.0}):
        with pytest.raises(ConfigurationError):
            Processing(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="chunk"):
        distribution(torch.zeros(1, 4), chunk=0)
    for scores in (torch.zeros(2, 0), torch.zeros(2, 3, dtype=torch.long), torch.tensor(1.0)):
        with pytest.raises(DistributionError):
            distribution(scores)
