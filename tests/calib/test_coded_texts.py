"""Codes and texts say the same, whatever the encoding came with."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calib.coded_texts import CodedTexts

TEXTS = st.lists(st.none() | st.sampled_from(["code", "chat", "", "é"]), max_size=12)


@pytest.mark.property
@given(TEXTS)
def test_codes_give_their_texts_back(texts: list[str | None]) -> None:
    coded = CodedTexts.of(texts)
    assert coded.texts().tolist() == texts
    assert np.asarray(coded).tolist() == texts
    assert coded.distinct() == [text for text in dict.fromkeys(texts) if text is not None]
    assert len(coded) == len(texts)


@pytest.mark.property
@given(TEXTS.filter(bool), st.data())
def test_an_encoding_by_somebody_else(words: list[str | None], data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(-1, len(words) - 1), max_size=12))
    expected = [None if index < 0 else words[index] for index in indices]
    coded = CodedTexts.from_dictionary(words, np.array(indices, dtype=np.int16))
    assert coded.texts().tolist() == expected
    assert set(coded.distinct()) == set(expected) - {None}
    assert len(set(coded.words.tolist())) == len(coded.words)
    compact = coded.compact()
    assert compact.texts().tolist() == expected
    assert len(compact.words) == len(set(expected) - {None}) + 1
    filled = ["chat" if text is None else text for text in expected]
    assert coded.filled("chat").texts().tolist() == filled


def test_unknown_rows_are_filled() -> None:
    coded = CodedTexts.of(["a", None, "b"])
    assert coded.filled("c").texts().tolist() == ["a", "c", "b"]
    assert coded.filled("b").texts().tolist() == ["a", "b", "b"]
    assert coded.filled("b").distinct() == ["a", "b"]
    whole = CodedTexts.repeated("a", 2)
    assert whole.filled("b") is whole
    assert whole.texts().tolist() == ["a", "a"]


def test_rows_of_some_texts() -> None:
    coded = CodedTexts.of(["a", None, "b", "a"])
    assert coded.isin({"a", "x"}).tolist() == [True, False, False, True]


def test_parts_of_one_encoding_are_joined_without_their_texts() -> None:
    coded = CodedTexts.of(["a", None, "b"])
    joined = CodedTexts.joined([coded[:1], coded[np.array([False, True, True])]])
    assert joined is not None
    assert joined.texts().tolist() == ["a", None, "b"]
    assert CodedTexts.joined([coded, CodedTexts.of(["a"])]) is None


def test_nobody_can_write_to_them() -> None:
    coded = CodedTexts.of(["a"])
    for array in (coded.words, coded.codes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert pickle.loads(pickle.dumps(coded)).texts().tolist() == ["a"]
