"""Losslessness, exactly: what comes out is distributed as the target alone would have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from calib.cost_table import FlatCostTable
from calib.prefix_scheduler import allocate, capacity_unconstrained, schedule_early_stop
from heads.sampling import draw
from heads.verification import verify_block
from tests.heads.exact_verification import (
    Policy,
    Tokens,
    greedy_table,
    joint,
    largest_difference,
    output_distribution,
    random_table,
)

pytestmark = pytest.mark.torch

EXACT = 1e-12


def threshold_policy(gamma: int, seed: int) -> Policy:
    """ℓ ends before the first position whose confidence, read off its prefix, is low."""
    confidence = random_table(2, 900 + seed)

    def policy(block: Tokens) -> int:
        low = (k for k in range(gamma) if float(confidence(block[:k])[0]) < 0.4)
        return next(low, gamma)

    return policy


def stop_policy(gamma: int, stop: int = 0) -> Policy:
    """The cut at the first drafted stop token."""
    return lambda block: block.index(stop) + 1 if stop in block else gamma


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("vocabulary", "mapping", "gamma"),
    [
        (2, (0, 1), 3),
        (3, (0, 1, 2), 2),
        (4, (0, 1, 2, 3), 2),
        (3, (0, 2), 3),  # reduced draft vocabulary
        (4, (1, 3), 2),
        (4, (2,), 3),
    ],
)
def test_everything_that_keeps_the_filtration_is_lossless(
    vocabulary: int, mapping: tuple[int, ...], gamma: int, seed: int
) -> None:
    target = random_table(vocabulary, seed)
    draft = random_table(len(mapping), 50 + seed)
    expected = joint(target, gamma + 1)
    fixed = [(lambda _block, ell=ell: ell) for ell in range(gamma + 1)]
    policies: list[Policy] = [*fixed, threshold_policy(gamma, seed), stop_policy(gamma, mapping[0])]
    for policy in policies:
        found = output_distribution(draft, target, mapping, gamma, policy)
        assert sum(found.values()) == pytest.approx(1.0, abs=EXACT)
        assert largest_difference(found, expected) < EXACT


@pytest.mark.parametrize("seed", range(3))
def test_truncated_distributions_are_lossless(seed: int) -> None:
    """Top-k and top-p leave zeros on either side, not at the same tokens."""
    target = random_table(4, seed, zeros=True)
    draft = random_table(4, 70 + seed, zeros=True)
    found = output_distribution(draft, target, range(4), 2, threshold_policy(2, seed))
    assert largest_difference(found, joint(target, 3)) < EXACT


@pytest.mark.parametrize("seed", range(4))
def test_greedy_is_the_targets_greedy(seed: int) -> None:
    target = greedy_table(random_table(4, seed))
    draft = greedy_table(random_table(4, 80 + seed))
    for policy in (lambda _block: 3, lambda _block: 1, stop_policy(3)):
        found = output_distribution(draft, target, range(4), 3, policy)
        assert largest_difference(found, joint(target, 4)) == 0.0
    # A sampled draft under a greedy target is lossless as well.
    found = output_distribution(random_table(4, 80 + seed), target, range(4), 3, lambda _block: 3)
    assert largest_difference(found, joint(target, 4)) < EXACT


def test_a_policy_that_sees_its_own_token_is_not_lossless() -> None:
    """The enumeration has teeth: it notices a leak."""
    target, draft = random_table(3, 1), random_table(3, 51)

    def leaky(block: Tokens) -> int:
        return 2 if block[0] == 0 else 0

    found = output_distribution(draft, target, range(3), 2, leaky)
    assert largest_difference(found, joint(target, 3)) > 0.01


# ---- the paper's Appendix A ----

STEPS = FlatCostTable((1, 2, 3), (1.0, 0.5, 0.45), 3)


def survival_of(block: Tokens) -> np.ndarray:
    """a_1 = .8; the token A at position 1 makes c_2 = .9, the token B makes it 0."""
    return np.array([[0.8, 0.8 * (0.9 if block[0] == 0 else 0.0)]])


def first_token(policy: Policy) -> list[float]:
    target = torch.tensor([0.7, 0.3], dtype=torch.float64)
    draft = torch.tensor([0.5, 0.5], dtype=torch.float64)
    found = output_distribution(lambda _prefix: draft, lambda _prefix: target, (0, 1), 2, policy)
    return [sum(mass for t, mass in found.items() if t[0] == token) for token in (0, 1)]


def global_search(block: Tokens) -> int:
    survival = survival_of(block)
    return int(allocate(survival, capacity_unconstrained(survival, STEPS))[0])


def early_stop(block: Tokens) -> int:
    return int(schedule_early_stop(survival_of(block), STEPS).verified[0])


def test_appendix_a_global_search_on_this_steps_confidence_is_not_lossless() -> None:
    assert [global_search((0, 0)), global_search((1, 0))] == [2, 0]
    assert first_token(global_search) == pytest.approx([0.85, 0.15], abs=EXACT)


def test_appendix_a_early_stop_is_lossless() -> None:
    assert [early_stop((0, 0)), early_stop((1, 0))] == [0, 0]
    assert first_token(early_stop) == pytest.approx([0.7, 0.3], abs=EXACT)


def test_early_stop_is_lossless_where_it_admits_by_the_token_before() -> None:
    """A flatter step curve: position 2 is admitted after A and not after B."""
    flatter = FlatCostTable((1, 2, 3), (1.0, 0.9, 0.8), 3)

    def policy(block: Tokens) -> int:
        return int(schedule_early_stop(survival_of(block), flatter).verified[0])

    assert [policy((0, 0)), policy((1, 0))] == [2, 1]
    assert first_token(policy) == pytest.approx([0.7, 0.3], abs=EXACT)


# ---- the same by chance ----


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("mapping", [(0, 1, 2, 3), (0, 2, 3)])
@pytest.mark.parametrize("trimmed", [False, True])
def test_first_tokens_of_many_seeded_rows(mapping: tuple[int, ...], trimmed: bool) -> None:
    rows, gamma = 20_000, 2
    target, draft = random_table(4, 3), random_table(len(mapping), 53)
    ids_to_target = torch.tensor(mapping)
    generator = torch.Generator().manual_seed(7)
    uniforms = torch.rand(rows, 2 * gamma + 2, generator=generator, dtype=torch.float64)
    blocks = torch.empty(rows, gamma, dtype=torch.long)
    q = torch.empty(rows, gamma, len(mapping), dtype=torch.float64)
    p = torch.empty(rows, gamma + 1, 4, dtype=torch.float64)
    for k in range(gamma + 1):
        prefixes = [tuple(ids_to_target[b].tolist()) for b in blocks[:, :k]]
        p[:, k] = torch.stack([target(prefix) for prefix in prefixes])
        if k < gamma:
            q[:, k] = torch.stack([draft(prefix) for prefix in prefixes])
            blocks[:, k] = draw(q[:, k], uniforms[:, k])
    policy = threshold_policy(gamma, 3)
    lengths = [policy(tuple(b)) if trimmed else gamma for b in ids_to_target[blocks].tolist()]
    verdict = verify_block(
        blocks,
        q.float(),
        p.float(),
        ids_to_target,
        torch.tensor(lengths),
        uniforms[:, gamma : 2 * gamma],
        uniforms[:, 2 * gamma],
    )
    # Rows that emitted one token only get their second from the target.
    accepted = verdict.accepted > 0
    first = torch.where(accepted, ids_to_target[blocks[:, 0]], verdict.next_token)
    following = torch.stack([target((token,)) for token in first.tolist()])
    fresh = draw(following, uniforms[:, -1])
    second = torch.where(verdict.accepted == 1, verdict.next_token, ids_to_target[blocks[:, 1]])
    second = torch.where(accepted, second, fresh)
    seen = np.bincount((first * 4 + second).numpy(), minlength=16)
    expected = joint(target, 2)
    masses = np.array([expected.get((t // 4, t % 4), 0.0) for t in range(16)])
    assert stats.chisquare(seen, masses * rows).pvalue > 1e-4
    # Acceptance is c*, the overlap of the two distributions.
    overlap = float(torch.minimum(draft(()), target(())[ids_to_target]).sum())
    verified_first = torch.tensor(lengths) >= 1
    share = float(accepted[verified_first].double().mean())
    assert share == pytest.approx(overlap, abs=4 * (overlap * (1 - overlap) / rows) ** 0.5)
