"""A column of texts as codes: each distinct text once, and one small number a row.

Thousands of rows name few requests, tags and engines. Arrow sends and stores such columns as codes;
an object a row would only be made to be counted again.

Letters: N rows, W distinct texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

__all__ = ["CodedTexts"]


@dataclass(frozen=True, slots=True, eq=False)
class CodedTexts:
    """Texts [N], None where unknown; NumPy takes it for an array of objects. Immutable.

    Attributes:
        words: the W distinct texts, then None, which code −1 so refers to; a word may occur in no
            row.
        codes: place of each row's text among the words [N], −1 where it is unknown.
    """

    words: NDArray[np.object_]
    codes: NDArray[np.int32]

    def __post_init__(self) -> None:
        self.words.flags.writeable = False
        self.codes.flags.writeable = False

    @classmethod
    def of(cls, texts: Sequence[str | None]) -> Self:
        """The codes of texts [N]."""
        places: dict[str | None, int] = dict.fromkeys(texts, 0)
        places.pop(None, None)
        places = {word: place for place, word in enumerate(places)}
        words = _closed(places)
        places[None] = -1
        codes = np.fromiter(map(places.__getitem__, texts), np.int32, len(texts))
        return cls(words, codes)

    @classmethod
    def from_dictionary(
        cls,
        words: Sequence[str | None],  # may hold a text twice, and None
        indices: NDArray[np.integer[Any]],  # [N] into the words, −1 where unknown
    ) -> Self:
        """The texts of an encoding by somebody else."""
        places: dict[str | None, int] = {None: -1}
        codes = [places.setdefault(word, len(places) - 1) for word in words]
        if len(places) == len(words) + 1:  # each word once, and none of them None
            return cls(_closed(words), indices.astype(np.int32))
        del places[None]
        return cls(_closed(places), np.array([*codes, -1], dtype=np.int32)[indices])

    @classmethod
    def repeated(cls, text: str, rows: int) -> Self:
        """One text in every row."""
        return cls(_closed([text]), np.zeros(rows, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | NDArray[Any]) -> CodedTexts:
        """The given rows; the words stay as they are."""
        return CodedTexts(self.words, self.codes[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        texts = self.words[self.codes]
        return texts if dtype is None else texts.astype(dtype)

    def texts(self) -> NDArray[np.object_]:
        """The texts as objects [N]; rows with the same text share one object."""
        texts: NDArray[np.object_] = self.words[self.codes]
        return texts

    def distinct(self) -> list[str]:
        """The texts that occur, in the order of the words."""
        found: list[str] = self.words[:-1][self._occurring()].tolist()
        return found

    def isin(self, texts: set[str]) -> NDArray[np.bool_]:
        """Mask [N] of the rows whose text is one of these."""
        return np.array([word in texts for word in self.words.tolist()])[self.codes]

    def filled(self, text: str) -> CodedTexts:
        """The same with ``text`` where it is unknown."""
        unknown = self.codes < 0
        if not unknown.any():
            return self
        words = self.words[:-1].tolist()
        place = words.index(text) if text in words else len(words)
        words = words if place < len(words) else [*words, text]
        return CodedTexts(_closed(words), np.where(unknown, np.int32(place), self.codes))

    def compact(self) -> CodedTexts:
        """The same without words that occur in no row."""
        occurring = self._occurring()
        if occurring.all():
            return self
        places = np.append(np.cumsum(occurring, dtype=np.int32) - 1, np.int32(-1))
        return CodedTexts(_closed(self.words[:-1][occurring].tolist()), places[self.codes])

    @staticmethod
    def joined(parts: Sequence[CodedTexts]) -> CodedTexts | None:
        """All rows of all parts, in order; None where the parts have not the same words."""
        words = parts[0].words
        if any(part.words is not words for part in parts):
            return None
        return CodedTexts(words, np.concatenate([part.codes for part in parts]))

    def _occurring(self) -> NDArray[np.bool_]:
        """Which words occur [W]."""
        counts = np.bincount(self.codes + 1, minlength=len(self.words))
        return counts[1:] > 0


def _closed(words: Iterable[str | None]) -> NDArray[np.object_]:
    """The words and None, as objects."""
    listed = [*words, None]
    array = np.empty(len(listed), dtype=np.object_)
    array[:] = listed
    return array
