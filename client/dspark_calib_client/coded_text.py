"""A column of text that says each word once: places of its rows in a short list.

A step's rows repeat the same few words: a rule, a form, the requests of the batch. As a list of
strings every cell would be looked at again on its way to a body, in the interpreter that the
engine's own thread needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["CodedText", "joined_texts"]


class CodedText:
    """Rows of a text column.

    Args:
        codes: NumPy integers [rows], places in ``texts``.
        texts: the words, None for an unknown one.

    Raises:
        ValueError: a code that is no place in ``texts``.
    """

    __slots__ = ("codes", "texts")

    def __init__(self, codes: Any, texts: Sequence[str | None]) -> None:
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(texts):
            raise ValueError(f"codes outside a list of {len(texts)} texts")
        self.codes = codes
        self.texts = texts

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> CodedText:
        """A part of the rows: a slice, or a list or array of places."""
        return CodedText(self.codes[rows], self.texts)

    @property
    def nbytes(self) -> int:
        """Memory it takes, in bytes, estimated."""
        return int(self.codes.nbytes) + 80 * len(self.texts)

    def tolist(self) -> list[str | None]:
        """One word a row."""
        texts = self.texts
        return [texts[code] for code in self.codes.tolist()]


def joined_texts(pieces: Sequence[CodedText]) -> CodedText:
    """All rows of the pieces, in order; a word that several have is there once."""
    numpy = sys.modules["numpy"]
    places: dict[str | None, int] = {}
    codes = []
    for piece in pieces:
        own = [places.setdefault(text, len(places)) for text in piece.texts]
        codes.append(numpy.array(own, dtype=numpy.int32)[piece.codes])
    return CodedText(numpy.concatenate(codes), list(places))
