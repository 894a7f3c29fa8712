"""Processed distributions against a naive reference, and draws at every edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from calib.errors import ConfigurationError, DistributionError
from calib.soft_label_processing import ProcessedDistribution, Processing, ScoreKind
from heads.sampling import RequestStream, SamplingParameters, draw, processed_probabilities

pytestmark = pytest.mark.torch


def naive(logits: list[float], parameters: SamplingParameters) -> list[float]:
    """Temperature, top-k, top-p and min-p over one row, one token at a time, in float64.

    Examples in which float32 rounding decides whether a token stays are rejected.
    """
    weights = [x / parameters.temperature for x in logits]
    largest = max(weights)
    weights = [np.exp(x - largest) for x in weights]
    if 0 < parameters.top_k < len(weights):
        kth = sorted(weights, reverse=True)[parameters.top_k - 1]
        weights = [w if w >= kth else 0.0 for w in weights]
    total = sum(weights)
    share = [w / total for w in weights]
    if parameters.top_p < 1.0:
        before = 0.0
        for token in sorted(range(len(share)), key=lambda t: (-share[t], t)):
            mass = share[token]
            assume(abs(before - parameters.top_p) > 1e-5)
            if before >= parameters.top_p:
                share[token] = 0.0
            before += mass
    floor = parameters.min_p * max(share)
    assume(all(s == max(share) or abs(s - floor) > 1e-5 * floor for s in share))
    share = [s if s >= floor else 0.0 for s in share]
    return [s / sum(share) for s in share]


@pytest.mark.property
@settings(max_examples=200)
@given(
    st.lists(st.integers(-24, 24), min_size=1, max_size=12),
    st.sampled_from([0.5, 0.6, 1.0, 1.7]),
    st.integers(0, 13),
    st.sampled_from([1.0, 0.97, 0.7, 0.3]),
    st.sampled_from([0.0, 0.03, 0.4]),
)
def test_processing_equals_a_naive_reference(
    quarters: list[int], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = [q / 4 for q in quarters]  # ties are common
    parameters = SamplingParameters(temperature, top_k, top_p, min_p)
    found = processed_probabilities(torch.tensor(logits)[None], parameters)[0]
    expected = naive(logits, parameters)
    assert found.numpy() == pytest.approx(np.array(expected), abs=2e-6)
    assert ((found > 0).numpy() == (np.array(expected) > 0)).all()


def test_processing_equals_the_label_side() -> None:
    """Soft labels and sampling must mean the same distribution."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 97, generator=generator) * 3
    for options in (
        (1.0, 0, 1.0, 0.0),
        (0.6, 20, 1.0, 0.0),
        (1.3, 0, 0.9, 0.0),
        (1.0, 50, 0.95, 0.05),
    ):
        ours = processed_probabilities(logits, SamplingParameters(*options))
        side = ProcessedDistribution("target", logits, ScoreKind.LOGITS, Processing(*options))
        theirs = side.probabilities(slice(0, 40), slice(0, 97))
        assert (ours - theirs).abs().max() < 1e-6


def test_greedy_is_the_lowest_of_the_largest() -> None:
    found = processed_probabilities(torch.tensor([[1.0, 3.0, 3.0]]), SamplingParameters(0.0))
    assert found.tolist() == [[0.0, 1.0, 0.0]]


def test_top_p_ties_keep_the_lower_ids() -> None:
    found = processed_probabilities(torch.zeros(1, 4), SamplingParameters(1.0, top_p=0.5))
    assert found.tolist() == [[0.5, 0.5, 0.0, 0.0]]


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_greedy_refuses_rows_without_a_best_token(bad: float) -> None:
    with pytest.raises(DistributionError, match="logits: got"):
        processed_probabilities(torch.full((1, 3), bad), SamplingParameters(0.0))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 1.0}, "min_p"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, float], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SamplingParameters(**options)  # type: ignore[arg-type]
    assert caught.value.field == field


def test_truncates_tells_whether_tokens_can_go() -> None:
    assert not SamplingParameters(0.6).truncates
    assert SamplingParameters(top_k=3).truncates
    assert SamplingParameters(top_p=0.9).truncates
    assert SamplingParameters(min_p=0.1).truncates
    assert SamplingParameters(0.0).greedy


# ---- draws ----

BELOW_ONE = float(np.nextafter(1.0, 0.0))


def test_draw_never_takes_a_token_without_weight() -> None:
    weights = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0, 0.0]]).expand(6, -1)
    uniforms = torch.tensor([0.0, 0.249999, 0.25, 0.5, BELOW_ONE, 1.0], dtype=torch.float64)
    assert draw(weights, uniforms).tolist() == [1, 1, 3, 3, 3, 3]


def test_draw_is_scale_free() -> None:
    weights = torch.tensor([[1.0, 2.0, 1.0]])
    uniform = torch.tensor([0.3], dtype=torch.float64)
    assert draw(weights * 1e-30, uniform) == draw(weights, uniform) == draw(weights * 1e30, uniform)


def test_draw_reaches_the_tail_of_a_large_vocabulary() -> None:
    """In float32 the running sum stops growing long before the last of these tokens."""
    weights = torch.full((1, 1 << 18), 1e-8)
    weights[0, 0] = 1.0
    last = draw(weights, torch.tensor([BELOW_ONE], dtype=torch.float64))
    assert last.item() == (1 << 18) - 1


@pytest.mark.parametrize("row", [[0.0, 0.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_draw_refuses_rows_without_a_sum(row: list[float]) -> None:
    weights = torch.tensor([[0.5, 0.5], row])
    with pytest.raises(DistributionError, match="weights: got"):
        draw(weights, torch.tensor([0.1, 0.1], dtype=torch.float64))


@pytest.mark.statistical
def test_draws_follow_the_weights() -> None:
    weights = torch.tensor([[0.05, 0.4, 0.0, 0.3, 0.25]])
    count = 40_000
    uniforms = torch.tensor(RequestStream(3, 1).uniforms(count), dtype=torch.float64)
    tokens = draw(weights.expand(count, -1), uniforms)
    seen = np.bincount(tokens.numpy(), minlength=5)
    assert seen[2] == 0
    expected = weights[0].numpy() * count
    assert stats.chisquare(seen[[0, 1, 3, 4]], expected[[0, 1, 3, 4]]).pvalue > 1e-4


# ---- streams ----


def test_a_stream_depends_on_seed_and_request_alone() -> None:
    first = RequestStream(7, 12)
    whole = first.uniforms(3) + first.uniforms(4)
    assert whole == RequestStream(7, 12).uniforms(7)
    assert whole != RequestStream(7, 13).uniforms(7)
    assert whole != RequestStream(8, 12).uniforms(7)
    assert all(0.0 <= u < 1.0 for u in whole)


@pytest.mark.parametrize(("seed", "request_number"), [(-1, 0), (0, -1)])
def test_a_stream_refuses_negative_numbers(seed: int, request_number: int) -> None:
    with pytest.raises(ConfigurationError, match="give 0 or more"):
        RequestStream(seed, request_number)
