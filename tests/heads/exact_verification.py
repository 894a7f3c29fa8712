"""The exact output distribution of :func:`heads.verification.verify_block`.

Uniforms enter in two ways only: a position is accepted when its uniform is below the ratio of its
token, and the next token is where the last uniform falls among running sums. So one
representative of each interval, weighted by the interval's length, integrates over all uniforms.
The intervals come from the formulas; what happens inside them is the code's own decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product

import torch
from torch import Tensor

from heads.verification import verify_block

Tokens = tuple[int, ...]
Table = Callable[[Tokens], Tensor]  # prefix of target ids -> [V] or [V'] float64
Policy = Callable[[Tokens], int]  # drafted block, target ids -> ℓ


def random_table(size: int, seed: int, sharpness: float = 1.5, zeros: bool = False) -> Table:
    """Distributions that depend on the prefix in an arbitrary but fixed way."""
    known: dict[Tokens, Tensor] = {}

    def table(prefix: Tokens) -> Tensor:
        if prefix not in known:
            mixed = seed
            for token in prefix:
                mixed = (mixed * 1_000_003 + token + 1) % 2**31
            generator = torch.Generator().manual_seed(mixed)
            logits = torch.randn(size, generator=generator, dtype=torch.float64) * sharpness
            if zeros:
                logits[int(torch.randint(0, size, (1,), generator=generator))] = -torch.inf
            known[prefix] = torch.softmax(logits, dim=-1)
        return known[prefix]

    return table


def greedy_table(table: Table) -> Table:
    """The one-hot distribution of the most likely token."""

    def best(prefix: Tokens) -> Tensor:
        row = table(prefix)
        return torch.zeros_like(row).scatter_(0, row.argmax(dim=0, keepdim=True), 1.0)

    return best


def joint(table: Table, length: int) -> dict[Tokens, float]:
    """Exact probabilities of all sequences of a length."""
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(length):
        found = {
            (*prefix, token): mass * float(p)
            for prefix, mass in found.items()
            for token, p in enumerate(table(prefix))
            if p > 0
        }
    return found


def output_distribution(
    draft: Table,
    target: Table,
    mapping: Sequence[int],
    gamma: int,
    policy: Policy,
) -> dict[Tokens, float]:
    """Exact distribution of the first γ + 1 emitted tokens.

    What a block leaves short is filled from the target itself: the blocks that follow are
    lossless if this one is.
    """
    cases = list(_cases(draft, target, mapping, gamma, policy))
    verdict = verify_block(
        torch.tensor([c[0] for c in cases]),
        torch.stack([c[1] for c in cases]),
        torch.stack([c[2] for c in cases]),
        torch.tensor(list(mapping)),
        torch.tensor([c[3] for c in cases]),
        torch.tensor([c[4] for c in cases], dtype=torch.float64),
        torch.tensor([c[5] for c in cases], dtype=torch.float64),
    )
    emitted: dict[Tokens, float] = defaultdict(float)
    for case, n, token in zip(
        cases, verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True
    ):
        block = tuple(mapping[i] for i in case[0])
        emitted[(*block[:n], token)] += case[6]
    filled: dict[Tokens, float] = defaultdict(float)
    for tokens, mass in emitted.items():
        missing = gamma + 1 - len(tokens)
        rest = joint(lambda more, tokens=tokens: target((*tokens, *more)), missing)
        for more, share in rest.items():
            filled[(*tokens, *more)] += mass * share
    return dict(filled)


_Case = tuple[Tokens, Tensor, Tensor, int, list[float], float, float]


def _cases(
    draft: Table, target: Table, mapping: Sequence[int], gamma: int, policy: Policy
) -> Iterator[_Case]:
    for ids in product(range(len(mapping)), repeat=gamma):
        block = tuple(mapping[i] for i in ids)
        q = torch.stack([draft(block[:k]) for k in range(gamma)])
        p = torch.stack([target(block[:k]) for k in range(gamma + 1)])
        mass = float(torch.stack([q[k, i] for k, i in enumerate(ids)]).prod())
        if mass == 0.0:
            continue
        verified = policy(block)
        ratios = [min(1.0, float(p[k, block[k]] / q[k, ids[k]])) for k in range(gamma)]
        for pattern in product((True, False), repeat=gamma):
            share, uniforms = mass, []
            for stands, ratio in zip(pattern, ratios, strict=True):
                share *= ratio if stands else 1.0 - ratio
                uniforms.append(ratio / 2 if stands else (1.0 + ratio) / 2)
            if share == 0.0:
                continue
            n = next((k for k in range(verified) if not pattern[k]), verified)
            weights = p[n].clone()
            if n < verified:
                weights[list(mapping)] -= q[n]
                weights.clamp_(min=0.0)
            edges = [0.0, *(weights.cumsum(0) / weights.sum()).tolist()]
            for low, high in pairwise(edges):
                if high > low:
                    middle = (low + high) / 2
                    yield ids, q, p, verified, uniforms, middle, share * (high - low)


def largest_difference(found: dict[Tokens, float], expected: dict[Tokens, float]) -> float:
    """Largest gap between two distributions, on whatever either of them says."""
    return max(abs(found.get(t, 0.0) - expected.get(t, 0.0)) for t in {*found, *expected})
