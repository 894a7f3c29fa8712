"""Bounds from truncated knowledge contain the truth and are attained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import DistributionError
from calib.labels import LabelKind
from calib.soft_label_bounds import ListedProbabilities, SoftLabelBounds, soft_label_bounds

pytestmark = pytest.mark.torch


def listed(
    tokens: list[int], probabilities: list[float], largest: bool = False
) -> ListedProbabilities:
    return ListedProbabilities(torch.tensor(tokens), torch.tensor(probabilities), largest)


def ends(bounds: SoftLabelBounds) -> tuple[float, float]:
    return round(bounds.lower.item(), 6), round(bounds.upper.item(), 6)


def test_r32_two_known_tokens() -> None:
    bounds = soft_label_bounds(listed([0, 1], [0.6, 0.3]), listed([0, 1], [0.5, 0.4]))
    assert ends(bounds) == (0.80, 0.90)
    assert bounds.kind is LabelKind.SOFT_TRUNCATED


def test_full_knowledge_is_exact() -> None:
    bounds = soft_label_bounds(listed([4, 7], [0.6, 0.4]), listed([7, 4], [0.7, 0.3]))
    assert ends(bounds) == (0.7, 0.7)


def test_tokens_listed_on_one_side_only() -> None:
    draft, target = listed([0, 1], [0.5, 0.3]), listed([0, 2], [0.6, 0.25])
    # Shared .5. Target's .15 fits under token 1 (.3); draft's .2 fits under token 2 (.25).
    assert ends(soft_label_bounds(draft, target)) == (0.5, 0.85)


def test_the_smallest_of_a_top_k_list_caps_what_is_unlisted() -> None:
    draft = listed([0, 1], [0.5, 0.3], largest=True)
    target = listed([0, 2, 3], [0.5, 0.2, 0.1], largest=True)
    # Unlisted tokens of the target have at most .1, so .1 of its .2 fits under token 1; the
    # draft's .2 fits under tokens 2 and 3. Without the caps all of both would fit.
    assert ends(soft_label_bounds(draft, target)) == (0.5, 0.8)
    loose = soft_label_bounds(listed([0, 1], [0.5, 0.3]), listed([0, 2, 3], [0.5, 0.2, 0.1]))
    assert ends(loose) == (0.5, 0.9)


def test_padding_is_no_token() -> None:
    padded = soft_label_bounds(
        listed([0, 1, -1, -1], [0.6, 0.3, float("nan"), 9.0], largest=True),
        listed([0, 1], [0.5, 0.4], largest=True),
    )
    assert ends(padded) == (0.8, 0.9)


def test_rows_are_independent() -> None:
    draft = ListedProbabilities(
        torch.tensor([[[0, 1]], [[5, 6]]]), torch.tensor([[[0.6, 0.3]], [[0.9, 0.1]]])
    )
    target = ListedProbabilities(
        torch.tensor([[[0, 1]], [[7, 8]]]), torch.tensor([[[0.5, 0.4]], [[0.2, 0.8]]])
    )
    bounds = soft_label_bounds(draft, target)
    assert bounds.lower.squeeze(-1).tolist() == pytest.approx([0.8, 0.0], abs=1e-6)
    assert bounds.upper.squeeze(-1).tolist() == pytest.approx([0.9, 0.0], abs=1e-6)


@pytest.mark.property
@given(
    seed=st.integers(0, 2**20),
    size=st.integers(2, 30),
    draft_kept=st.integers(1, 10),
    target_kept=st.integers(1, 10),
    largest=st.booleans(),
)
def test_the_truth_lies_between(
    seed: int, size: int, draft_kept: int, target_kept: int, largest: bool
) -> None:
    rng = np.random.default_rng(seed)
    sides, full = [], []
    for kept in (draft_kept, target_kept):
        p = rng.gamma(0.5, size=size) + 1e-12
        p /= p.sum()
        order = np.argsort(-p) if largest else rng.permutation(size)
        tokens = order[: min(kept, size)]
        sides.append(
            ListedProbabilities(torch.from_numpy(tokens), torch.from_numpy(p[tokens]), largest)
        )
        full.append(p)
    bounds = soft_label_bounds(*sides)
    truth = np.minimum(*full).sum()
    assert bounds.lower.item() - 1e-12 <= truth <= bounds.upper.item() + 1e-12


def test_wrong_lists_are_refused() -> None:
    good = listed([0, 1], [0.5, 0.4])
    for wrong, remedy in [
        (listed([0, 0], [0.5, 0.4]), "list each token once"),
        (listed([0, 1], [0.9, 0.4]), "sums to <= 1"),
        (listed([0, 1], [0.5, -0.4]), "0 or more"),
        (listed([0, 1], [0.5, float("nan")]), "0 or more"),
        (ListedProbabilities(torch.tensor([0.0]), torch.tensor([0.1])), "integer ids"),
        (ListedProbabilities(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.1]])), "rows of the"),
    ]:
        with pytest.raises(DistributionError, match=remedy):
            soft_label_bounds(good, wrong)
