from __future__ import annotations

from typing import Any

import pytest

from calib.errors import CalibrationValueError
from monitoring.segment_match import SEGMENT_TAGS, match_segment

CODE: dict[str, Any] = {"tags": {"domain": "code"}, "temperatures": [2.0]}
CODE_GREEDY: dict[str, Any] = {
    "tags": {"domain": "code", "sampling_temperature": 0},
    "temperatures": [3.0],
}
LONG: dict[str, Any] = {"tags": {"context_length": 2}, "temperatures": [4.0]}
SEGMENTS = {
    "edges": {"sampling_temperature": [0.5], "context_length": [1024, 4096]},
    "entries": [CODE, CODE_GREEDY, LONG],
}


def test_without_segments_nothing_matches_and_the_answer_says_so() -> None:
    found = match_segment(None, {"domain": "code"})
    assert (found.requested, found.matched, found.level) == ({"domain": "code"}, None, "pooled")
    assert found.numbers is None


@pytest.mark.parametrize(
    ("requested", "entry"),
    [
        ({"domain": "code"}, CODE),
        ({"domain": "code", "sampling_temperature": "0.2"}, CODE_GREEDY),
        ({"domain": "code", "sampling_temperature": "0.5"}, CODE),  # an edge opens its bucket
        ({"domain": "chat"}, None),
        ({"sampling_temperature": "0"}, None),  # no entry for any domain
        ({"context_length": "4096"}, LONG),
        ({"context_length": "4095"}, None),
        ({}, None),
    ],
)
def test_the_entry_that_agrees_on_most_tags_wins(
    requested: dict[str, str], entry: dict[str, Any] | None
) -> None:
    found = match_segment(SEGMENTS, requested)
    assert found.numbers is entry
    assert found.matched == (None if entry is None else entry["tags"])
    assert found.level == ("pooled" if entry is None else "segment")


def test_an_entry_without_tags_is_never_a_match() -> None:
    anything = {"entries": [{"tags": {}, "temperatures": [9.0]}]}
    assert match_segment(anything, {"domain": "code"}).matched is None


def test_without_edges_a_number_matches_itself_only() -> None:
    segments = {"entries": [{"tags": {"context_length": 512}, "temperatures": [1.5]}]}
    assert match_segment(segments, {"context_length": "512"}).level == "segment"
    assert match_segment(segments, {"context_length": "513"}).level == "pooled"


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
    with pytest.raises(CalibrationValueError, match=remedy) as caught:
        match_segment(SEGMENTS, {tag: value})
    assert caught.value.field == f"segment.{tag}"


def test_every_tag_can_be_asked_for() -> None:
    numeric = {"sampling_temperature", "context_length"}
    for tag in SEGMENT_TAGS:
        assert match_segment(None, {tag: "1" if tag in numeric else "x"}).level == "pooled"
