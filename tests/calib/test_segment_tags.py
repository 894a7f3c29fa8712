from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError
from calib.records import AcceptanceRecords
from calib.segment_tags import (
    DEFAULT_LEVELS,
    POOL,
    TAGS,
    SegmentBuckets,
    SegmentKey,
    SegmentLevels,
    leaf_segments,
)

BUCKETS = SegmentBuckets()


def key(**buckets: str) -> SegmentKey:
    return SegmentKey.of(buckets)


@pytest.mark.parametrize(
    ("tag", "value", "bucket"),
    [
        ("sampling_temperature", 0, "0"),
        ("sampling_temperature", 0.0, "0"),
        ("sampling_temperature", 1e-6, "0-0.5"),
        ("sampling_temperature", 0.5, "0-0.5"),
        ("sampling_temperature", 0.7, "0.5-0.85"),
        ("sampling_temperature", "0.85", "0.5-0.85"),
        ("sampling_temperature", 1.0, "0.85-1.15"),
        ("sampling_temperature", np.float32(1.2), "over 1.15"),
        ("context_length", 0, "0-512"),
        ("context_length", "513", "512-2048"),
        ("context_length", 10**6, "over 32768"),
        ("domain", "code", "code"),
        ("adapter", "0", "0"),
    ],
)
def test_buckets(tag: str, value: object, bucket: str) -> None:
    assert BUCKETS.bucket(tag, value) == bucket


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("sampling_temperature", "warm"),
        ("sampling_temperature", -0.1),
        ("sampling_temperature", float("nan")),
        ("sampling_temperature", "inf"),
        ("sampling_temperature", True),
        ("sampling_temperature", 10**400),
        ("context_length", None),
        ("domain", 3),
        ("domain", ""),
        ("mood", "good"),
    ],
)
def test_wrong_values_are_named(tag: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"segment.{tag}"):
        BUCKETS.bucket(tag, value)


def test_a_request_and_a_row_on_an_edge_share_a_bucket() -> None:
    """.85 is not the same number in fp32 and fp64; both lie on the edge."""
    for edge in (0.5, 0.85, 1.15):
        column = np.array([edge], dtype=np.float32)
        row = int(BUCKETS.numbers("sampling_temperature", column)[0])
        labels = BUCKETS.labels("sampling_temperature")
        assert labels[row] == BUCKETS.bucket("sampling_temperature", edge)


def test_unknown_numbers_have_no_bucket() -> None:
    assert BUCKETS.numbers("sampling_temperature", np.array([np.nan, 0.0])).tolist() == [-1, 0]
    assert BUCKETS.numbers("context_length", np.array([-1, 512])).tolist() == [-1, 0]


@pytest.mark.parametrize("edges", [(), (0.5, 0.5), (1.0, 0.5), (-1.0,), (np.nan,), ("a",)])
def test_wrong_edges_are_refused(edges: Any) -> None:
    with pytest.raises(ConfigurationError, match="edges"):
        SegmentBuckets(sampling_temperature=edges)


def test_keys_do_not_depend_on_the_order_of_tags() -> None:
    one = SegmentKey.of({"domain": "code", "acceptance_rule": "greedy"})
    other = SegmentKey.of({"acceptance_rule": "greedy", "domain": "code"})
    assert one == other
    assert one.tags == ("acceptance_rule", "domain")
    assert one.to_dict() == {"acceptance_rule": "greedy", "domain": "code"}
    assert one.restricted(("domain",)) == key(domain="code")
    assert one.restricted(("domain", "adapter")) is None
    assert one.restricted(()) == POOL
    for wrong in ({"mood": "good"}, {"domain": ""}, {"domain": 3}):
        with pytest.raises(ConfigurationError, match="segment"):
            SegmentKey.of(wrong)  # type: ignore[arg-type]


def test_raw_tags_make_a_key_and_unknown_values_do_not() -> None:
    tags = {"domain": "code", "sampling_temperature": 0.7, "adapter": None}
    assert BUCKETS.key(tags) == key(domain="code", sampling_temperature="0.5-0.85")
    assert BUCKETS.key({}) == POOL


def test_the_parent_is_the_last_coarser_level() -> None:
    levels = SegmentLevels()
    fine = key(domain="code", sampling_temperature="0", context_length="0-512")
    middle = key(domain="code", sampling_temperature="0")
    # Sampling temperature comes after domain: it is the nearer parent of their product.
    assert levels.parent(fine) == middle
    assert levels.parent(middle) == key(sampling_temperature="0")
    assert levels.parent(key(domain="code")) == POOL
    assert levels.parent(POOL) == POOL


def test_candidates_go_from_fine_to_coarse() -> None:
    levels = SegmentLevels((("domain",), ("sampling_temperature", "domain")))
    asked = key(domain="code", sampling_temperature="0", adapter="a")
    assert levels.candidates(asked) == (
        key(domain="code", sampling_temperature="0"),
        key(domain="code"),
        POOL,
    )
    assert levels.candidates(key(adapter="a")) == (POOL,)
    assert levels.tags == ("sampling_temperature", "domain")


@pytest.mark.parametrize(
    "levels",
    [((),), (("mood",),), (("domain", "domain"),), (("domain",), ("domain",)),
     (("domain", "adapter"), ("adapter",))],
)  # fmt: skip
def test_levels_out_of_order_are_refused(levels: Any) -> None:
    """("domain", "adapter") before ("adapter",): the child would be fitted before its parent."""
    if levels == (("domain", "adapter"), ("adapter",)):
        SegmentLevels(tuple(reversed(levels)))
    with pytest.raises(ConfigurationError, match="levels"):
        SegmentLevels(levels)


def test_default_levels_hold_every_tag() -> None:
    assert SegmentLevels(DEFAULT_LEVELS).tags == TAGS


def test_rows_by_their_finest_segment() -> None:
    columns = {
        "confidence_logits": [[0.5]] * 5,
        "verified": [1] * 5,
        "accepted": [1] * 5,
        "domain": ["code", None, "code", "chat", "code"],
        "sampling_temperature": [0.0, 0.7, None, 0.7, 0.0],
    }
    records = AcceptanceRecords.from_columns(1, columns)
    codes, keys = leaf_segments(records, BUCKETS, ("domain", "sampling_temperature", "adapter"))
    assert [keys[code].to_dict() for code in codes] == [
        {"sampling_temperature": "0", "domain": "code"},
        {"sampling_temperature": "0.5-0.85"},
        {"domain": "code"},
        {"sampling_temperature": "0.5-0.85", "domain": "chat"},
        {"sampling_temperature": "0", "domain": "code"},
    ]
    assert list(keys) == sorted(keys)
    assert leaf_segments(records, BUCKETS, ())[1] == (POOL,)
    assert leaf_segments(AcceptanceRecords.empty(1), BUCKETS, ("domain",))[1] == ()
