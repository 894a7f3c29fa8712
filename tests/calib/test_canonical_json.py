from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.canonical_json import (
    canonical_json,
    parse_json_object,
    plain_json,
    round_numbers,
    round_significant,
    sha256_hex,
)
from calib.errors import FormatError, InvalidInputError
from calib.statuses import PositionStatus


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.58489322662, 1.58489),
        (0.0499999999, 0.05),
        (20.0000001, 20.0),
        (123456789.0, 123457000.0),
    ],
)
def test_six_significant_digits(value: float, rounded: float) -> None:
    assert round_significant(value) == rounded


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_rounding_twice_changes_nothing(value: float) -> None:
    once = round_significant(value)
    assert round_significant(once) == once
    assert math.isclose(once, value, rel_tol=5.1e-6)


def test_bytes_are_rfc_8785() -> None:
    value = {"é": 1e21, "b": [1.0, -0.0, 1e-7, True, None], "a": "\u20ac\n"}
    expected = '{"a":"€\\n","b":[1,0,1e-7,true,null],"é":1e+21}'
    assert canonical_json(value) == expected.encode()


def test_digest_is_the_hash_of_those_bytes() -> None:
    assert sha256_hex({"b": 1, "a": 2}) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()


def test_numpy_scalars_tuples_and_words_become_plain() -> None:
    value = {"x": (np.float32(0.5), np.int64(3), np.bool_(True)), "s": PositionStatus.AT_BOUND}
    plain = plain_json(value)
    assert plain == {"x": [0.5, 3, True], "s": "at_bound"}
    assert type(plain["s"]) is str
    assert json.loads(canonical_json(value)) == plain


@pytest.mark.parametrize(
    "bad", [float("nan"), math.inf, 2**53, {1: 2}, {"a"}, b"x", np.float64("nan"), object()]
)
def test_what_json_cannot_hold_is_named(bad: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"evidence\.list\[1\]"):
        plain_json({"list": [0, bad]}, "evidence")


def test_parse_reads_text_and_bytes() -> None:
    assert parse_json_object(b'{"a": 1}', "x") == parse_json_object('{"a": 1}', "x") == {"a": 1}


@pytest.mark.parametrize(
    "bad", [b"", b"[1]", b"{", b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe"]
)
def test_parse_refuses_what_is_no_object(bad: bytes) -> None:
    with pytest.raises(FormatError, match="somewhere"):
        parse_json_object(bad, "somewhere")


def test_numbers_beyond_doubles_are_left_to_the_field_check() -> None:
    assert parse_json_object('{"a": 1e400}', "x") == {"a": math.inf}


def test_every_number_of_a_document_is_rounded() -> None:
    found = round_numbers({"a": (1 / 3, [2.5, True]), "b": {"c": 1e9 / 7, "d": None, "e": "x"}})
    assert found == {"a": [0.333333, [2.5, True]], "b": {"c": 142857000.0, "d": None, "e": "x"}}
    assert round_numbers(1 / 3, digits=9) == 0.333333333
