"""Formulas of the acceptance rules against enumeration of what a verifier does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from calib.errors import ConfigurationError, DistributionError
from calib.soft_label_rules import (
    DraftVocabulary,
    before_each,
    block_survival,
    soft_survival,
)
from calib.soft_labels import block_labels, soft_labels, token_acceptance

pytestmark = pytest.mark.torch

Array = NDArray[np.float64]
PROCESSED = {"draft_kind": "processed", "target_kind": "processed"}

# Every (rule, draft mode) with the probability that drafted token x is accepted, by its protocol.
RULES = [
    ("rejection", "sampled"),
    ("rejection", "greedy"),
    ("exact_match", "sampled"),
    ("exact_match", "greedy"),
    ("greedy", "sampled"),
    ("greedy", "greedy"),
]


def dirichlet(rows: int, size: int, seed: int, power: float = 2.0) -> Array:
    weights = np.random.default_rng(seed).gamma(1.0, size=(rows, size)) ** power
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def accepted(rule: str, mode: str, q: Array, p: Array, token: int) -> float:
    """Chance that the verifier keeps this token, written from the protocol of each rule."""
    draft = np.eye(len(q))[q.argmax()] if mode == "greedy" else q
    target = np.eye(len(p))[p.argmax()] if rule == "greedy" else p
    if rule == "rejection":
        return float(min(1.0, target[token] / draft[token])) if draft[token] > 0 else 0.0
    # The target draws its own token and keeps the draft's only where they agree.
    return float(target[token])


@pytest.mark.parametrize(("rule", "mode"), RULES)
def test_label_is_the_mean_acceptance_over_the_draft(rule: str, mode: str) -> None:
    q, p = dirichlet(40, 6, 0), dirichlet(40, 6, 1)
    labels = soft_labels(
        torch.tensor(q), torch.tensor(p), rule=rule, draft_mode=mode, **PROCESSED
    ).numpy()
    for row in range(40):
        draft = np.eye(6)[q[row].argmax()] if mode == "greedy" else q[row]
        mean = sum(draft[x] * accepted(rule, mode, q[row], p[row], x) for x in range(6))
        assert labels[row] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize(("rule", "mode"), RULES)
def test_token_acceptance_is_the_protocol_of_each_token(rule: str, mode: str) -> None:
    q, p = dirichlet(40, 6, 2), dirichlet(40, 6, 3)
    rng = np.random.default_rng(4)
    tokens = q.argmax(-1) if mode == "greedy" else rng.integers(0, 6, 40)
    found = token_acceptance(
        torch.tensor(q), torch.tensor(p), torch.tensor(tokens), rule=rule, draft_mode=mode,
        **PROCESSED,
    ).numpy()  # fmt: skip
    expected = [accepted(rule, mode, q[row], p[row], tokens[row]) for row in range(40)]
    assert np.allclose(found, expected, rtol=0, atol=1e-12)


def verified_prefixes(q: Array, p: Array, path: tuple[int, ...]) -> Array:
    """P(τ ≥ k | drafted path) of block verification, from its acceptance draws h_i.

    h_i = r_i / (r_i + 1 − P_i) with r_i = Σ_x max(P_i p_{i+1}(x) − q_{i+1}(x), 0), and h_G = P_G;
    τ is the last i whose own uniform falls below h_i.
    """
    gamma, running, draws = len(path), 1.0, []
    for i in range(gamma):
        before = path[: i + 1]
        running = min(1.0, running * p[path[:i]][path[i]] / q[path[:i]][path[i]])
        if i + 1 == gamma:
            draws.append(running)
            continue
        residual = np.maximum(running * p[before] - q[before], 0.0).sum()
        draws.append(residual / (residual + 1.0 - running) if residual > 0.0 else 0.0)
        if running == 1.0 and residual == 0.0:
            draws[-1] = 1.0
    return np.asarray([1.0 - np.prod([1.0 - h for h in draws[k:]]) for k in range(gamma)])


@pytest.mark.parametrize("seed", range(6))
def test_block_labels_give_the_survival_of_block_verification(seed: int) -> None:
    """E over drafted paths of the soft survival is P(τ ≥ k) of the algorithm's own draws."""
    vocabulary, gamma = 3, 3
    prefixes = [pre for n in range(gamma) for pre in itertools.product(range(vocabulary), repeat=n)]
    q = dict(zip(prefixes, dirichlet(len(prefixes), vocabulary, 2 * seed), strict=True))
    p = dict(zip(prefixes, dirichlet(len(prefixes), vocabulary, 2 * seed + 1), strict=True))
    exact, soft = np.zeros(gamma), np.zeros(gamma)
    for path in itertools.product(range(vocabulary), repeat=gamma):
        chance = np.prod([q[path[:k]][path[k]] for k in range(gamma)])
        labels = block_labels(
            torch.tensor(np.stack([q[path[:k]] for k in range(gamma)])),
            torch.tensor(np.stack([p[path[:k]] for k in range(gamma)])),
            torch.tensor(path),
            rule="block",
            draft_mode="sampled",
            **PROCESSED,
        )
        exact += chance * verified_prefixes(q, p, path)
        soft += chance * labels.survival.numpy()
    assert np.allclose(soft, exact, rtol=0, atol=1e-12)


def test_m4_block_verification() -> None:
    q1, p1 = [0.5, 0.5], [0.8, 0.2]
    q2, p2 = {0: [0.7, 0.3], 1: [0.2, 0.8]}, {0: [0.4, 0.6], 1: [0.6, 0.4]}
    means = {}
    for rule in ("block", "rejection"):
        survival = np.zeros(2)
        for x in (0, 1):
            labels = block_labels(
                torch.tensor([q1, q2[x]]),
                torch.tensor([p1, p2[x]]),
                torch.tensor([x, 0]),
                rule=rule,
                draft_mode="sampled",
                **PROCESSED,
            )
            survival += q1[x] * labels.survival.double().numpy()
        means[rule] = survival
    assert np.allclose(means["block"], [0.70, 0.53], atol=1e-6)
    assert np.allclose(means["rejection"], [0.70, 0.47], atol=1e-6)


def test_block_label_after_a_doubtful_token() -> None:
    """M4 after x_1 = 1: P_1 = .4, Σ min(.2, .24) + min(.8, .16) = .36, conditional .9."""
    labels = block_labels(
        torch.tensor([[0.5, 0.5], [0.2, 0.8]]),
        torch.tensor([[0.8, 0.2], [0.6, 0.4]]),
        torch.tensor([1, 0]),
        rule="block",
        draft_mode="sampled",
        **PROCESSED,
    )
    assert labels.conditional.tolist() == pytest.approx([0.7, 0.9], abs=1e-6)
    assert labels.token_acceptance is None
    assert labels.survival.tolist() == pytest.approx([0.7, 0.36], abs=1e-6)


def test_block_label_is_unknown_where_no_prefix_survives() -> None:
    labels = block_labels(
        torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]]),
        torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]]),
        torch.tensor([1, 0, 0]),
        rule="block",
        draft_mode="sampled",
        **PROCESSED,
    )
    assert labels.conditional.isnan().tolist() == [False, True, True]
    assert labels.survival.tolist() == [0.5, 0.0, 0.0]


def test_one_token_has_no_acceptance_of_its_own_in_a_block() -> None:
    """P_1 = .4 and P_2 = 1: their ratio is 2.5, no probability."""
    q, p = torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([[0.8, 0.2], [0.6, 0.4]])
    with pytest.raises(ConfigurationError, match="tests no single token"):
        token_acceptance(
            q, p, torch.tensor([1, 0]), rule="block", draft_mode="sampled", **PROCESSED
        )


def test_block_rows_that_agree_or_exclude_each_other_are_exact() -> None:
    same = torch.softmax(torch.randn(1, 4, 500), -1)
    tokens = same.argmax(-1)
    labels = block_labels(same, same, tokens, rule="block", draft_mode="sampled", **PROCESSED)
    assert labels.conditional.eq(1.0).all()
    disjoint = torch.tensor([[[0.5, 0.5, 0.0, 0.0]]]), torch.tensor([[[0.0, 0.0, 0.5, 0.5]]])
    found = soft_labels(
        *disjoint, rule="block", draft_mode="sampled", drafted=torch.tensor([[0]]), **PROCESSED
    )
    assert found.item() == 0.0


def test_block_survival_never_recovers_above_its_ratio() -> None:
    ratio = torch.tensor([[0.5, 3.0, 0.5], [2.0, 0.25, 8.0]], dtype=torch.float64)
    assert block_survival(ratio).tolist() == [[0.5, 1.0, 0.5], [1.0, 0.25, 1.0]]
    assert before_each(block_survival(ratio)).tolist() == [[1.0, 0.5, 1.0], [1.0, 1.0, 0.25]]


def test_soft_survival_uses_the_tokens_that_were_drafted() -> None:
    """Design case: q = (.5, .5), p = (.9, .1), c_2 = (.9, .1): survival .46, not .6 · .5."""
    conditional = torch.tensor([[0.6, 0.9], [0.6, 0.1]])
    alpha = torch.tensor([[1.0, 0.5], [0.2, 0.5]])
    survival = soft_survival(conditional, alpha)
    assert torch.allclose(survival, torch.tensor([[0.6, 0.9], [0.6, 0.02]]))
    assert survival[:, 1].mean().item() == pytest.approx(0.46)


def test_a_certain_rejection_beats_an_unknown() -> None:
    conditional = torch.tensor([0.5, float("nan"), 0.7, 0.7])
    alpha = torch.tensor([0.0, float("nan"), 0.5, 0.5])
    assert soft_survival(conditional, alpha).tolist() == [0.5, 0.0, 0.0, 0.0]
    unknown = soft_survival(torch.tensor([0.5, 0.5]), torch.tensor([float("nan"), 1.0]))
    assert unknown[0] == 0.5
    assert unknown[1].isnan()


def test_soft_survival_refuses_other_shapes() -> None:
    with pytest.raises(ConfigurationError, match="token_acceptance"):
        soft_survival(torch.zeros(2, 3), torch.zeros(2, 2))


def test_mapping_both_ways() -> None:
    vocabulary = DraftVocabulary(torch.tensor([4, 0, 2]), 3, 5, torch.device("cpu"))
    assert vocabulary.target_ids(torch.tensor([0, 2])).tolist() == [4, 2]
    assert vocabulary.draft_ids(torch.arange(5)).tolist() == [1, -1, 2, -1, 0]
    assert vocabulary.outside is not None
    assert vocabulary.outside.tolist() == [1, 3]
    assert torch.equal(torch.as_tensor(vocabulary.target_tokens(slice(1, 3))), torch.tensor([0, 2]))


@pytest.mark.parametrize(
    ("mapping", "remedy"),
    [
        ([0, 1], "one target id per draft id"),
        ([0, 1, 5], r"ids in \[0, 5\)"),
        ([0, -1, 2], r"ids in \[0, 5\)"),
        ([0, 2, 2], "map each id once"),
        (None, "draft_to_target"),
    ],
)
def test_a_wrong_mapping_is_refused(mapping: list[int] | None, remedy: str) -> None:
    table = None if mapping is None else torch.tensor(mapping)
    with pytest.raises(DistributionError, match=remedy):
        DraftVocabulary(table, 3, 5, torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.property
@given(seed=st.integers(0, 2**20), size=st.integers(2, 40), gamma=st.integers(1, 6))
def test_labels_are_probabilities_and_rejection_is_symmetric(
    seed: int, size: int, gamma: int
) -> None:
    q, p = (
        torch.tensor(dirichlet(gamma, size, seed)),
        torch.tensor(dirichlet(gamma, size, seed + 1)),
    )
    tokens = q.argmax(-1)
    for rule, mode in [*RULES, ("block", "sampled"), ("block", "greedy")]:
        labels = block_labels(q, p, tokens, rule=rule, draft_mode=mode, **PROCESSED)
        acceptance = labels.token_acceptance
        assert (acceptance is None) == ((rule, mode) == ("block", "sampled"))
        for values in (labels.conditional, labels.survival, acceptance):
            if values is not None:
                known = values[~values.isnan()]
                assert bool(((known >= 0.0) & (known <= 1.0)).all())
    one = soft_labels(q, p, rule="rejection", draft_mode="sampled", **PROCESSED)
    other = soft_labels(p, q, rule="rejection", draft_mode="sampled", **PROCESSED)
    assert torch.allclose(one, other, rtol=0, atol=1e-12)
