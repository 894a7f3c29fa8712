"""Columns of text that say each word once."""

from __future__ import annotations

import numpy as np
import pytest

from dspark_calib_client.coded_text import CodedText, joined_texts


def test_rows_are_words_by_their_codes() -> None:
    text = CodedText(np.array([1, 0, 1, 2]), ("a", "b", None))
    assert text.tolist() == ["b", "a", "b", None]
    assert (len(text), len(text[1:3])) == (4, 2)
    assert text[1:3].tolist() == ["a", "b"]
    assert text[[3, 0]].tolist() == [None, "b"]
    assert text[np.array([], dtype=int)].tolist() == []
    assert text.nbytes > 4


@pytest.mark.parametrize("codes", [[2], [-1], [0, 5]])
def test_a_code_without_a_word_is_refused(codes: list[int]) -> None:
    with pytest.raises(ValueError, match="2 texts"):
        CodedText(np.array(codes), ("a", "b"))


def test_joined_rows_say_a_word_once() -> None:
    pieces = [
        CodedText(np.array([0, 1]), ("a", "b")),
        CodedText(np.array([], dtype=np.int32), ()),
        CodedText(np.array([0, 1, 2]), ("b", None, "c")),
    ]
    joined = joined_texts(pieces)
    assert joined.tolist() == ["a", "b", "b", None, "c"]
    assert list(joined.texts) == ["a", "b", None, "c"]
