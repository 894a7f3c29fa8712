"""Packed words order scores as torch does, and equal scores by falling id."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heads.reference.deterministic_argmax import (
    ID_BITS,
    LEAST_WORD,
    best_words,
    decoded_ids,
    packed_words,
)

pytestmark = pytest.mark.torch

NAN, INF = float("nan"), float("inf")
FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)


@pytest.mark.property
@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_the_largest_word_is_torchs_argmax(scores: list[float]) -> None:
    values = torch.tensor(scores, dtype=torch.float32)[None]
    assert int(decoded_ids(best_words(values, 0))) == int(values.argmax())


@pytest.mark.property
@given(FLOATS, FLOATS)
def test_words_order_as_scores_do(a: float, b: float) -> None:
    values = torch.tensor([a, b], dtype=torch.float32)
    first, second = packed_words(values, torch.tensor([5, 5])).tolist()
    if a != a or b != b:
        assert (first > second) == (a != a and b == b)
    else:
        assert (first > second) == (values[0] > values[1])
        assert (first == second) == (values[0] == values[1])


def test_ties_signs_and_nan() -> None:
    negative_nan = torch.tensor([-1], dtype=torch.int32).view(torch.float32)
    rows = [
        ([1.0, 3.0, 3.0, 2.0], 1),  # the lowest id of the best
        ([-0.0, 0.0, -1.0, -2.0], 0),  # zeros are equal
        ([-1.0, -0.0, 0.0, -2.0], 1),
        ([-INF, -INF, -INF, -INF], 0),
        ([INF, NAN, INF, NAN], 1),  # NaN above infinity, the lowest id of several
        ([-3e38, -INF, -1e-45, -1.0], 2),
    ]
    for scores, expected in rows:
        assert int(decoded_ids(best_words(torch.tensor([scores]), 0))) == expected
    mixed = torch.cat([torch.tensor([INF]), negative_nan, torch.tensor([NAN])])[None]
    assert int(decoded_ids(best_words(mixed, 0))) == 1  # whatever sign or payload a NaN has


def test_ids_keep_31_bits_and_any_score_beats_no_score() -> None:
    ids = torch.tensor([0, 1, 151_935, ID_BITS])
    words = packed_words(torch.full((4,), -INF), ids)
    assert torch.equal(decoded_ids(words), ids)
    assert (words > LEAST_WORD).all()
    assert words.argmax() == 0


def test_words_of_parts_merge_to_the_word_of_the_whole() -> None:
    scores = torch.randint(-3, 4, (50, 24), generator=torch.Generator().manual_seed(0)).float()
    parts = [best_words(scores[:, :10], 0), best_words(scores[:, 10:], 10)]
    assert torch.equal(torch.maximum(*parts), best_words(scores, 0))
    assert torch.equal(decoded_ids(torch.maximum(*parts)), scores.argmax(dim=1))
