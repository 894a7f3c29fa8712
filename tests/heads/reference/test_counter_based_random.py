"""The stream's words are Philox4x32-10, and its numbers are Gumbel and independent."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from heads.reference.counter_based_random import (
    gumbel_noise,
    gumbel_of_words,
    natural_log,
    philox,
)
from tests.heads.kernels.float64_draft_block import gumbel64

pytestmark = pytest.mark.torch

ONES = 0xFFFFFFFF
# Known-answer vectors published with Random123 for philox4x32 with 10 rounds.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def _word(value: int) -> Tensor:
    return torch.tensor(value)


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    c0, c1, c2, c3 = map(_word, counter)
    found = philox((c0, c1, c2, c3), (_word(key[0]), _word(key[1])))
    assert tuple(found.tolist()) == expected


def test_noise_is_the_stream_that_is_documented() -> None:
    """Against NumPy, from the formulas: key, counter, word and both logarithms."""
    keys = torch.tensor([0, -1, 7, -(1 << 63), (5 << 32) | 9])
    positions = torch.tensor([0, 1, (1 << 32) - 1, 12, 77_000])
    for first, count in ((0, 9), (4, 1), (151_000, 130)):
        found = gumbel_noise(keys, positions, 3, first, count)
        assert found.dtype == torch.float32
        assert found.shape == (5, count)
        expected = gumbel64(keys, positions, 3, np.arange(first, first + count))
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-6, rtol=2e-7)


def test_noise_does_not_depend_on_how_ids_are_cut() -> None:
    keys, positions = torch.tensor([3, 4]), torch.tensor([10, 11])
    whole = gumbel_noise(keys, positions, 1, 0, 100)
    parts = [gumbel_noise(keys, positions, 1, first, size) for first, size in ((0, 40), (40, 60))]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(gumbel_noise(keys[1:], positions[1:], 1, 0, 100), whole[1:])


def test_every_part_of_the_counter_matters() -> None:
    base = gumbel_noise(torch.tensor([1]), torch.tensor([1]), 1, 0, 64)
    others = [
        gumbel_noise(torch.tensor([2]), torch.tensor([1]), 1, 0, 64),
        gumbel_noise(torch.tensor([1 + (1 << 32)]), torch.tensor([1]), 1, 0, 64),
        gumbel_noise(torch.tensor([1]), torch.tensor([2]), 1, 0, 64),
        gumbel_noise(torch.tensor([1]), torch.tensor([1]), 2, 0, 64),
        gumbel_noise(torch.tensor([1]), torch.tensor([1]), 1, 64, 64),
    ]
    for other in others:
        assert (other != base).all()


def test_extreme_words_are_finite_and_ordered() -> None:
    """The winning tail keeps all 32 bits: neighbours at the small end differ."""
    words = torch.tensor(
        [0, 1, 2, 3, (1 << 30) - 1, 1 << 30, (1 << 31) - 1, 1 << 31, ONES - 1, ONES]
    )
    found = gumbel_of_words(words).double().numpy()
    uniform = (words.double().numpy() + 0.5) * 2.0**-32
    np.testing.assert_allclose(found, -np.log(-np.log1p(-uniform)), atol=2e-6)
    assert (np.diff(found[:5]) < 0).all()
    assert found[0] == pytest.approx(22.873857, abs=1e-5)
    assert found[-1] == pytest.approx(-3.129994, abs=1e-5)


def test_natural_log_is_within_a_rounding_or_two() -> None:
    x = torch.exp(torch.linspace(-23.0, 4.0, 20_001)).float()
    expected = np.log(x.double().numpy())
    error = np.abs(natural_log(x).double().numpy() - expected)
    assert (error <= np.maximum(1.2e-7 * np.abs(expected), 1.2e-7)).all()


@pytest.mark.statistical
def test_noise_is_gumbel_and_uncorrelated() -> None:
    keys = torch.arange(64) * 7919
    positions = torch.arange(64) * 3
    draws = torch.stack([gumbel_noise(keys, positions, k, 0, 512) for k in range(1, 8)])
    sample = draws.flatten().double().numpy()
    assert stats.kstest(sample, "gumbel_r").pvalue > 1e-3
    # A quarter million pairs: correlations of independent numbers stay below 5 / sqrt(N).
    centred = draws.double() - draws.double().mean()
    limit = 5.0 / centred.numel() ** 0.5
    for shifted in (
        (centred[1:] * centred[:-1]).mean(),  # steps
        (centred[:, 1:] * centred[:, :-1]).mean(),  # requests and positions
        (centred[..., 1:] * centred[..., :-1]).mean(),  # neighbouring ids, words of one counter
        (centred[..., 4:] * centred[..., :-4]).mean(),  # neighbouring counters
    ):
        assert abs(float(shifted / centred.var())) < limit * 1.2
