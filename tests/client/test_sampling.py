"""The sample: a share of requests, chosen by name and seed and nothing else."""

from __future__ import annotations

import pytest

from dspark_calib_client.sampling import RequestSampler

NAMES = [f"r{index}" for index in range(20_000)]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 1.0])
def test_the_share_is_kept(share: float) -> None:
    """Within five binomial standard deviations."""
    sampler = RequestSampler(share, 0)
    kept = sum(map(sampler.keeps, NAMES))
    assert abs(kept - share * len(NAMES)) <= 5 * (len(NAMES) * share * (1 - share)) ** 0.5


def test_a_request_is_kept_whole_and_by_every_engine() -> None:
    one, other = RequestSampler(0.3, 7), RequestSampler(0.3, 7)
    assert [one.keeps(name) for name in NAMES] == [other.keeps(name) for name in NAMES]
    assert [one.keeps(name) for name in NAMES] == [one.keeps(name) for name in NAMES]


def test_seeds_choose_independently() -> None:
    """Both keep a name with probability 0.09: 1,800 of 20,000, within five deviations (40)."""
    one, other = RequestSampler(0.3, 1), RequestSampler(0.3, 2)
    both = sum(one.keeps(name) and other.keeps(name) for name in NAMES)
    assert abs(both - 1800) < 203


def test_a_larger_share_keeps_what_a_smaller_one_kept() -> None:
    small, large = RequestSampler(0.1, 0), RequestSampler(0.2, 0)
    assert all(large.keeps(name) for name in NAMES if small.keeps(name))


def test_memory_is_bounded() -> None:
    sampler = RequestSampler(0.5, 0)
    first = [sampler.keeps(name) for name in NAMES[:100]]
    for index in range(70_000):
        sampler.keeps(("step", index))
    assert len(sampler._remembered) <= 65_536
    assert [sampler.keeps(name) for name in NAMES[:100]] == first
