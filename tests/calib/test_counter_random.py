from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from calib.counter_random import name_hash, philox, place_uniforms


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_words(
    counter: tuple[int, ...], key: tuple[int, int], words: str
) -> None:
    """Known answers of the Random123 distribution."""
    found = philox(np.array([counter], dtype=np.uint64), key)
    assert [f"{word:08x}" for word in found[0]] == words.split()


def test_counters_are_independent_of_their_company() -> None:
    counters = np.arange(40).reshape(10, 4)
    together = philox(counters, (1, 2))
    alone = [philox(counters[row : row + 1], (1, 2))[0] for row in range(10)]
    assert np.array_equal(together, np.stack(alone))


def test_names_and_numbers_are_one() -> None:
    assert name_hash(17) == name_hash("17")
    assert name_hash("a") != name_hash("b")
    assert 0 <= name_hash("a") < 2**64


def test_every_part_of_the_place_counts() -> None:
    base = place_uniforms(0, "e", 5, ["r"])[0]
    others = [
        place_uniforms(1, "e", 5, ["r"])[0],
        place_uniforms(0, "f", 5, ["r"])[0],
        place_uniforms(0, "e", 6, ["r"])[0],
        place_uniforms(0, "e", 5 + 2**32, ["r"])[0],
        place_uniforms(0, "e", 5, ["s"])[0],
    ]
    assert len({base, *others}) == 6
    assert place_uniforms(0, "e", 5, ["r"])[0] == base
    assert place_uniforms(0, "e", 5, ["x", "r"])[1] == base
    assert len(place_uniforms(0, "e", 5, [])) == 0


@pytest.mark.statistical
def test_uniforms_are_uniform_over_steps_and_over_requests() -> None:
    """Kolmogorov–Smirnov at 10⁻⁴, and no correlation of neighbours, over 4,000 places each."""
    steps = np.concatenate([place_uniforms(0, "e", step, ["r"]) for step in range(4000)])
    requests = place_uniforms(0, "e", 0, range(4000))
    for values in (steps, requests):
        assert 0.0 <= values.min() < values.max() < 1.0
        assert stats.kstest(values, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 4 / 4000**0.5
    assert abs(np.corrcoef(steps, requests)[0, 1]) < 4 / 4000**0.5
