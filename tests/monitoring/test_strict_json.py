"""The slow reader: stricter than the standard library where it matters, patient elsewhere."""

from __future__ import annotations

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitoring.strict_json import FaultyJsonError, Word, mark_foreign_words, strict_value

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
_VALUES = st.lists(_SCALARS, max_size=4) | st.dictionaries(
    st.text(max_size=3), _SCALARS, max_size=4
)


@pytest.mark.slow
@pytest.mark.property
@settings(max_examples=50)
@given(_VALUES)
def test_reads_what_the_standard_library_writes(value: object) -> None:
    assert strict_value(json.dumps(value).encode()) == value
    assert strict_value(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [("1e400", "1e400"), ("-1e400", "-1e400"), ("9" * 5000, "a whole number of 5000 digits")],
)
def test_a_number_that_no_double_holds_is_a_word(text: str, shown: str) -> None:
    value = strict_value(text.encode())
    assert isinstance(value, Word)
    assert repr(value) == shown


def test_a_long_whole_number_that_a_double_holds_is_kept() -> None:
    assert strict_value(b"1" * 300) == int("1" * 300)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":1}', "comes twice"),
        (b'[{"a":{"b":1,"b":2}}]', "comes twice"),
        (b'"\xff"', "no UTF-8"),
        (b'"\xed\xa0\x80"', "no UTF-8"),
        (b"[1", "no JSON"),
        (b"01", "no JSON"),
        (b'"\x01"', "no JSON"),
        (b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    ],
)
def test_faults_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(FaultyJsonError, match=reason):
        strict_value(data)


def test_the_doubled_key_is_named() -> None:
    with pytest.raises(FaultyJsonError) as caught:
        strict_value(b'{"verified":1,"accepted":0,"verified":2}')
    assert caught.value.field == "verified"


def test_nothing_to_mark() -> None:
    assert mark_foreign_words(b'{"a": [1, "text", "\\u00e9"]}') is None
    assert mark_foreign_words(b'{"domain": "NaN", "x": "-Infinity"}') is None
    assert mark_foreign_words(b'{"a": "\\ud83d\\ude00"}') is None
    assert mark_foreign_words(b'{"a": "\\\\ud83d"}') is None


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_foreign_word_stands_for_itself_and_nothing_else_changes(word: str) -> None:
    body = f'{{"a": [1.5, {word}], "b": "{word}, \\"{word}", "c": {word}}}'.encode()
    marked = mark_foreign_words(body)
    assert marked is not None
    value = strict_value(marked)
    assert [repr(value["a"][1]), repr(value["c"])] == [word, word]
    assert isinstance(value["a"][1], Word)
    assert (value["a"][0], value["b"]) == (1.5, f'{word}, "{word}')


def test_half_surrogates_become_a_control_character() -> None:
    marked = mark_foreign_words(b'["x\\ud800y", "\\udc00", "\\ud83d\\ude00", "\\\\ud800"]')
    assert marked is not None
    assert strict_value(marked) == ["x\x00y", "\x00", "\N{GRINNING FACE}", "\\ud800"]


def test_words_far_into_a_body_are_found() -> None:
    texts = [f"NaN {k}" for k in range(30_000)]
    marked = mark_foreign_words(json.dumps([*texts, float("nan")]).encode())
    assert marked is not None
    *kept, last = strict_value(marked)
    assert (kept, repr(last)) == (texts, "NaN")


def test_marking_takes_time_in_proportion_to_the_body() -> None:
    """Quotes that never close must not be tried again from every other quote."""
    hostile = b'NaN "' + b'\\"' * 200_000
    started = time.process_time()
    mark_foreign_words(hostile)
    assert time.process_time() - started < 5.0


def test_minus_zero_and_tiny_numbers_keep_their_sign_and_value() -> None:
    assert math.copysign(1.0, strict_value(b"-0.0")) == -1.0
    assert strict_value(b"5e-324") == 5e-324
