"""Verification of single blocks: acceptance, replacement, bonus, and refused input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calib.errors import DistributionError
from heads.verification import Verdict, verify_block

pytestmark = pytest.mark.torch

BELOW_ONE = float(np.nextafter(1.0, 0.0))


def one_block(
    draft_ids: list[int],
    draft: list[list[float]],
    target: list[list[float]],
    accept: list[float],
    draw: float,
    *,
    verified: int | None = None,
    mapping: list[int] | None = None,
) -> Verdict:
    vocabulary = len(draft[0])
    return verify_block(
        torch.tensor([draft_ids]),
        torch.tensor([draft]),
        torch.tensor([target]),
        torch.tensor(mapping if mapping is not None else list(range(vocabulary))),
        torch.tensor([len(draft_ids) if verified is None else verified]),
        torch.tensor([accept], dtype=torch.float64),
        torch.tensor([draw], dtype=torch.float64),
    )


Q = [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]]
P = [[0.25, 0.6, 0.15], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6]]


def test_acceptance_is_the_ratio_of_the_drafted_token() -> None:
    verdict = one_block([0, 1], Q, P, [0.49, 0.49], 0.0)
    assert verdict.token_acceptance.tolist() == [pytest.approx([0.5, 0.5])]
    assert verdict.accepted.tolist() == [2]
    assert one_block([0, 1], Q, P, [0.51, 0.0], 0.0).accepted.tolist() == [0]
    assert one_block([0, 1], Q, P, [0.0, 0.51], 0.0).accepted.tolist() == [1]


def test_the_replacement_comes_from_the_residual() -> None:
    # At position 1 only token 1 has more target than draft; at position 2 only token 0.
    for draw in (0.0, 0.5, BELOW_ONE):
        assert one_block([0, 1], Q, P, [0.9, 0.0], draw).next_token.tolist() == [1]
        assert one_block([0, 1], Q, P, [0.0, 0.9], draw).next_token.tolist() == [0]


def test_the_bonus_comes_from_the_target() -> None:
    drawn = [one_block([0, 1], Q, P, [0.0, 0.0], u).next_token.item() for u in (0.1, 0.3, 0.5)]
    assert drawn == [0, 1, 2]


def test_trimming_draws_from_the_target_where_it_stops() -> None:
    verdict = one_block([0, 1], Q, P, [0.0, 0.0], 0.5, verified=1)
    assert verdict.accepted.tolist() == [1]
    assert verdict.next_token.tolist() == [1]  # of (.4, .3, .3)
    assert verdict.token_acceptance[0, 1] == pytest.approx(0.5)  # stated past ℓ as well
    verdict = one_block([0, 1], Q, P, [0.0, 0.0], 0.9, verified=0)
    assert verdict.accepted.tolist() == [0]
    assert verdict.next_token.tolist() == [2]  # of (.25, .6, .15)


def test_identical_distributions_accept_always() -> None:
    rows = 4000
    generator = torch.Generator().manual_seed(0)
    same = torch.softmax(torch.randn(rows, 3, 11, generator=generator) * 4, dim=-1)
    ids = same.argmax(dim=-1)
    uniforms = torch.full((rows, 2), BELOW_ONE, dtype=torch.float64)
    verdict = verify_block(
        ids[:, :2],
        same[:, :2],
        same,
        torch.arange(11),
        torch.full((rows,), 2),
        uniforms,
        uniforms[:, 0],
    )
    assert (verdict.accepted == 2).all()
    assert (verdict.token_acceptance == 1.0).all()


def test_disjoint_distributions_accept_never() -> None:
    q, p = [[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    verdict = one_block([0], q, p, [0.0], 0.3)
    assert verdict.accepted.tolist() == [0]
    assert verdict.next_token.tolist() == [2]
    assert verdict.token_acceptance.tolist() == [[0.0]]


def test_greedy_accepts_equal_tokens_alone() -> None:
    def hot(token: int) -> list[float]:
        return [1.0 if v == token else 0.0 for v in range(4)]

    target = [hot(2), hot(1), hot(3)]
    for drafted, accepted, following in (([2, 1], 2, 3), ([2, 0], 1, 1), ([0, 1], 0, 2)):
        verdict = one_block(drafted, [hot(t) for t in drafted], target, [0.999, 0.999], 0.999)
        assert verdict.accepted.tolist() == [accepted]
        assert verdict.next_token.tolist() == [following]


def test_a_reduced_vocabulary_is_mapped() -> None:
    q, p = [[0.5, 0.5]], [[0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]]
    verdict = one_block([1], q, p, [0.61], 0.0, mapping=[0, 2])
    assert verdict.token_acceptance.tolist() == [[pytest.approx(0.6)]]
    assert verdict.accepted.tolist() == [0]
    # The residual is (0, .2, 0, .4): target ids that the drafter cannot say.
    drawn = [
        one_block([1], q, p, [0.61], u, mapping=[0, 2]).next_token.item() for u in (0.3, 0.4, 0.9)
    ]
    assert drawn == [1, 3, 3]


def test_rounding_that_leaves_no_residual_falls_back_to_the_target() -> None:
    """Equal up to rounding: rejected at u just below 1, and p is nowhere above q."""
    q = torch.tensor([[[0.25, 0.75]]])
    p = torch.tensor([[[0.25, 0.75 - 6e-8], [0.5, 0.5]]])
    verdict = verify_block(
        torch.tensor([[1]]),
        q,
        p,
        torch.arange(2),
        torch.tensor([1]),
        torch.tensor([[BELOW_ONE]], dtype=torch.float64),
        torch.tensor([0.2], dtype=torch.float64),
    )
    assert verdict.accepted.tolist() == [0]
    assert verdict.next_token.tolist() == [0]


# ---- refused input ----


def arguments(**changes: Any) -> dict[str, Any]:
    values: dict[str, Tensor] = {
        "draft_ids": torch.tensor([[0, 1]]),
        "draft_probabilities": torch.tensor([Q]),
        "target_probabilities": torch.tensor([P]),
        "draft_to_target": torch.arange(3),
        "verified": torch.tensor([2]),
        "accept_uniforms": torch.zeros(1, 2, dtype=torch.float64),
        "draw_uniforms": torch.zeros(1, dtype=torch.float64),
    }
    return {**values, **changes}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("draft_probabilities", torch.tensor([[[0.0, 0.8, 0.2], [0.1, 0.6, 0.3]]])),
        ("draft_probabilities", torch.tensor([[[float("nan")] * 3, [0.1, 0.6, 0.3]]])),
        ("draft_probabilities", torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])),
        ("target_probabilities", torch.tensor([P[:2]])),
        ("verified", torch.tensor([3])),
        ("verified", torch.tensor([-1])),
        ("verified", torch.tensor([2, 2])),
        ("accept_uniforms", torch.zeros(1, 3)),
        ("draw_uniforms", torch.zeros(2)),
    ],
)
def test_what_does_not_belong_together_is_named(field: str, value: Tensor) -> None:
    with pytest.raises(DistributionError) as caught:
        verify_block(**arguments(**{field: value}))
    assert caught.value.field == field
