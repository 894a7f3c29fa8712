from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.errors import CalibrationValueError
from calib.segment_serving import STRICT_TAGS, SegmentTable, Unseen
from calib.segment_tags import POOL, SegmentBuckets, SegmentKey, SegmentLevels
from calib.served_segment import ServedSegment
from monitoring.segment_match import SEGMENT_TAGS, UnmatchedSegment, match_segment
from monitoring.segment_match import STRICT_TAGS as STRICT_HERE

LEVELS = SegmentLevels((("domain",), ("sampling_temperature",), ("sampling_temperature", "domain")))
SERVED: dict[tuple[tuple[str, str], ...], float] = {
    (): 1.5,
    (("domain", "code"),): 2.0,
    (("sampling_temperature", "0"),): 3.0,
    (("sampling_temperature", "0"), ("domain", "code")): 4.0,
}
TABLE = SegmentTable(
    gamma=1,
    buckets=SegmentBuckets(),
    levels=LEVELS,
    segments={
        SegmentKey(items): ServedSegment(SegmentKey(items), 100, (temperature,))
        for items, temperature in SERVED.items()
    },
    seen={"sampling_temperature": ("0", "0.85-1.15"), "domain": ("code", "law")},
)
SEGMENTS: dict[str, Any] = json.loads(TABLE.to_json())


def test_without_segments_nothing_matches_and_the_answer_says_so() -> None:
    found = match_segment(None, {"domain": "code"})
    assert (found.requested, found.matched, found.level) == ({"domain": "code"}, None, "pooled")
    assert found.numbers is None
    assert match_segment(None, {"domain": "code"}, "identity").level == "identity"
    assert match_segment(None, {}, "identity").level == "pooled"


@pytest.mark.parametrize(
    ("requested", "temperature", "matched"),
    [
        ({"domain": "code"}, 2.0, {"domain": "code"}),
        (
            {"domain": "code", "sampling_temperature": "0"},
            4.0,
            {"domain": "code", "sampling_temperature": "0"},
        ),
        # 1.0 was fitted on, but has no segment of its own: the coarser one answers.
        ({"domain": "code", "sampling_temperature": "1.0"}, 2.0, {"domain": "code"}),
        ({"sampling_temperature": "0.0"}, 3.0, {"sampling_temperature": "0"}),
        # Unseen values are served by their parent.
        ({"domain": "chat"}, None, None),
        ({"domain": "chat", "sampling_temperature": "0"}, 3.0, {"sampling_temperature": "0"}),
        # A tag that no level uses.
        ({"domain": "code", "draft_mode": "greedy"}, 2.0, {"domain": "code"}),
        ({"context_length": "4096"}, None, None),
        ({}, None, None),
    ],
)
def test_the_finest_segment_that_holds_the_request_answers(
    requested: dict[str, str], temperature: float | None, matched: dict[str, str] | None
) -> None:
    for setting in ("pooled", "identity"):
        found = match_segment(SEGMENTS, requested, setting)
        assert found.matched == matched
        assert found.level == ("pooled" if matched is None else "segment")
        assert (found.numbers or {"temperatures": [None]})["temperatures"] == [temperature]


def test_r65_a_sampling_temperature_that_no_row_had_is_another_event() -> None:
    requested = {"domain": "code", "sampling_temperature": "0.6"}
    flagged = match_segment(SEGMENTS, requested)
    assert (flagged.level, flagged.matched) == ("segment", {"domain": "code"})  # no temperature
    assert match_segment(SEGMENTS, requested, "identity").level == "identity"
    alone = match_segment(SEGMENTS, {"sampling_temperature": "0.6"})
    assert (alone.level, alone.matched) == ("pooled", None)


_VALUES = {
    "domain": st.sampled_from(["code", "law", "chat"]),
    "sampling_temperature": st.sampled_from(["0", "0.2", "0.5", "0.7", "1", "1.15", "3e5"]),
    "context_length": st.sampled_from(["0", "512", "513", "1e9"]),
    "acceptance_rule": st.sampled_from(["rejection", "greedy"]),
    "adapter": st.sampled_from(["a", "b"]),
}


@given(
    requested=st.fixed_dictionaries({}, optional=_VALUES),
    setting=st.sampled_from([("pooled", "parent"), ("identity", "identity")]),
)
def test_answers_are_those_of_the_table(
    requested: dict[str, str], setting: tuple[UnmatchedSegment, Unseen]
) -> None:
    here, there = setting
    answer = TABLE.with_unseen(there).answer(requested)
    found = match_segment(SEGMENTS, requested, here)
    if answer.level == "identity":
        assert found.level == "identity"
        return
    numbers = found.numbers or SEGMENTS["segments"][0]
    assert tuple(numbers["temperatures"]) == answer.temperatures
    assert (found.matched or {}) == answer.matched
    assert found.level == ("pooled" if answer.level == "pool" else "segment")


def test_strict_tags_are_the_tables_and_its_first_segment_the_pool() -> None:
    assert STRICT_HERE == STRICT_TAGS
    assert SEGMENTS["segments"][0]["tags"] == POOL.to_dict()


@pytest.mark.parametrize(
    ("tag", "value", "remedy"),
    [
        ("tenant", "x", "tags are sampling_temperature"),
        ("domain", "", "1 to 128 characters"),
        ("domain", "x" * 129, "1 to 128 characters"),
        ("sampling_temperature", "warm", "finite number"),
        ("sampling_temperature", "nan", "finite number"),
        ("sampling_temperature", "-1", "finite number"),
        ("context_length", "1e999", "finite number"),
    ],
)
def test_tags_and_values_that_cannot_be_matched_are_refused(
    tag: str, value: str, remedy: str
) -> None:
    for segments in (SEGMENTS, None):
        with pytest.raises(CalibrationValueError, match=remedy) as caught:
            match_segment(segments, {tag: value})
        assert caught.value.field == f"segment.{tag}"


def test_every_tag_can_be_asked_for() -> None:
    numeric = {"sampling_temperature", "context_length"}
    for tag in SEGMENT_TAGS:
        assert match_segment(None, {tag: "1" if tag in numeric else "x"}).level == "pooled"
