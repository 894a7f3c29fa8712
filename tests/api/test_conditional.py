from __future__ import annotations

import hashlib

import pytest

from api.conditional import (
    EntityTags,
    header_values,
    none_match,
    parse_tags,
    require_match,
    strong_tag,
)
from api.problems import ProblemError

TAG = '"abc"'


def test_a_strong_tag_is_the_quoted_digest_of_the_bytes() -> None:
    assert strong_tag(b"body") == f'"{hashlib.sha256(b"body").hexdigest()}"'


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("*", EntityTags(any=True)),
        (" * ", EntityTags(any=True)),
        ('"a"', EntityTags(strong=frozenset({"a"}))),
        ('W/"a"', EntityTags(weak=frozenset({"a"}))),
        ('"a", W/"b" ,"c"', EntityTags(strong=frozenset({"a", "c"}), weak=frozenset({"b"}))),
        ('"a,b"', EntityTags(strong=frozenset({"a,b"}))),  # a comma within a tag
        ("a", EntityTags()),
        ("", EntityTags()),
        ('"open', EntityTags()),
        ('bad, "a"', EntityTags(strong=frozenset({"a"}))),
        ('w/"a"', EntityTags()),  # the weak mark is case-sensitive
        ('"a" "b"', EntityTags()),
        ('"*"', EntityTags(strong=frozenset({"*"}))),
    ],
)
def test_tags_are_read_as_rfc_9110_writes_them(value: str, expected: EntityTags) -> None:
    assert parse_tags(value) == expected


def test_a_header_full_of_tags_is_cut() -> None:
    many = ", ".join(f'"{number}"' for number in range(1000))
    assert len(parse_tags(many).strong) == 100


@pytest.mark.parametrize(
    ("header", "sent"),
    [
        (None, True),
        (TAG, False),
        ('W/"abc"', False),  # If-None-Match compares weakly
        ('"x", "abc"', False),
        ("*", False),
        ('"x"', True),
        ("abc", True),
        ('"ABC"', True),
    ],
)
def test_if_none_match_decides_about_304(header: str | None, sent: bool) -> None:
    assert none_match(header, TAG) is sent


@pytest.mark.parametrize("header", [TAG, '"x", "abc"', "*"])
def test_if_match_lets_the_current_state_pass(header: str) -> None:
    require_match(header, TAG)


@pytest.mark.parametrize("header", ['"x"', 'W/"abc"', "abc", ""])
def test_if_match_of_another_state_is_412(header: str) -> None:
    with pytest.raises(ProblemError) as caught:
        require_match(header, TAG)
    assert caught.value.kind.status == 412
    assert caught.value.headers["ETag"] == TAG


def test_a_change_without_if_match_is_428() -> None:
    with pytest.raises(ProblemError) as caught:
        require_match(None, TAG)
    assert caught.value.kind.status == 428


def test_repeated_headers_are_joined() -> None:
    headers = [(b"if-match", b'"a"'), (b"accept", b"*/*"), (b"if-match", b'"b"')]
    assert header_values(headers, b"if-match") == '"a", "b"'
    assert header_values(headers, b"if-none-match") is None
