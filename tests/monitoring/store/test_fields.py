"""What columns may hold is the same on every database."""

from __future__ import annotations

import pytest

from calib.errors import FormatError, InvalidInputError
from monitoring.store.fields import (
    checked_identifier,
    checked_slug,
    checked_text,
    clamped,
    is_slug,
    json_text,
    read_json,
    read_optional_json,
)


@pytest.mark.parametrize("slug", ["a", "0", "code", "v4.flash_2-b", "x" * 128])
def test_slugs(slug: str) -> None:
    assert checked_slug("drafter", slug) == slug


@pytest.mark.parametrize(
    "wrong", ["", "A", "-a", ".a", "_a", "a b", "a/b", "é", "a\n", "x" * 129, 7, None]
)
def test_no_slugs(wrong: str) -> None:
    with pytest.raises(InvalidInputError, match="drafter: got"):
        checked_slug("drafter", wrong)


@pytest.mark.parametrize("wrong", ["", "a\0b", "\ud800", "x" * 1025, b"bytes", None])
def test_texts_that_no_database_holds(wrong: str) -> None:
    with pytest.raises(InvalidInputError, match="engine: got"):
        checked_text("engine", wrong)


def test_texts_keep_what_people_write() -> None:
    assert checked_text("engine", "Zürich γ 🙂") == "Zürich γ 🙂"


def test_json_is_canonical_and_strict() -> None:
    assert json_text({"b": 1.0, "a": [None, True]}) == '{"a":[null,true],"b":1}'
    assert read_json('{"a":1}') == {"a": 1}
    assert read_optional_json(None) is None
    assert read_optional_json("{}") == {}
    assert read_json(json_text({"text": "a\0b"})) == {"text": "a\0b"}
    with pytest.raises(InvalidInputError):
        json_text({"a": float("nan")})
    with pytest.raises(FormatError, match="stored JSON"):
        read_json("[]")


def test_identifiers_are_short_enough_to_be_indexed() -> None:
    assert checked_identifier("engine", "🙂" * 255) == "🙂" * 255
    with pytest.raises(InvalidInputError, match="1 to 255 characters"):
        checked_identifier("engine", "x" * 256)


def test_numbers_that_a_column_compares_with() -> None:
    assert [clamped(number, 31) for number in (-5, 0, 7, 2**31 - 1, 10**30)] == [
        -1,
        0,
        7,
        2**31 - 1,
        2**31 - 1,
    ]
    assert clamped(10**30) == 2**63 - 1
    assert [is_slug(text) for text in ("code", "a\0b", "\ud800", "")] == [True, False, False, False]
