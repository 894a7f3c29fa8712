"""JSON read strictly and slowly, for the rows that the fast reader cannot take as they are.

Stricter than the standard library: a key may come once, a number must fit a double, bytes must be
UTF-8. And more patient with the rest of a batch: ``NaN`` and ``Infinity``, which are no JSON but
which many writers emit, and halves of surrogate pairs spoil their own row only.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

__all__ = ["FaultyJsonError", "Word", "mark_foreign_words", "strict_value"]

_LONGEST_INTEGER: Final = 400  # digits; the largest double has 309
_LONGEST_SHOWN: Final = 40
_SUSPICIOUS: Final = re.compile(rb"NaN|Infinity|\\u[dD][89a-fA-F]")
# All that needs no look: strings without escaped surrogates, and what is no foreign word outside of
# strings. Many at once, but not more than a few milliseconds' worth, because other threads have to
# wait for a match. Nothing here can backtrack.
_CLEAN: Final = re.compile(
    rb'(?:[^"NI-]++|"(?:[^"\\]++|\\(?!u[dD][89a-fA-F]).)*+"|-(?!Infinity)|N(?!aN)|I(?!nfinity)){0,10000}+',
    re.DOTALL,
)
# What comes after it: a string, closed or not, or a word.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|-?(?:NaN|Infinity)', re.DOTALL)
_ESCAPES: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
_MARK: Final = "\x00"  # no column has such a key, and no text may contain it


class FaultyJsonError(ValueError):
    """A JSON text that is not what it should be.

    Attributes:
        field: the key that comes twice; empty for other faults.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        self.field = field
        super().__init__(reason)


class Word:
    """Stands where a number should and is none: it fits no column, and shows itself in errors."""

    __slots__ = ("_shown",)

    def __init__(self, shown: str) -> None:
        self._shown = shown[:_LONGEST_SHOWN]

    def __repr__(self) -> str:
        return self._shown


def strict_value(data: bytes | bytearray | memoryview) -> Any:
    """The value of one JSON text, with a :class:`Word` for each number that is none.

    Raises:
        FaultyJsonError: no UTF-8, no JSON, a key that comes twice in one object, or nesting beyond
            Python's own.
    """
    try:
        text = str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FaultyJsonError(f"is no UTF-8 ({error.reason} at byte {error.start})") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_single_keys,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=Word,
        )
    except json.JSONDecodeError as error:
        raise FaultyJsonError(f"is no JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise FaultyJsonError("is nested too deeply") from None


def mark_foreign_words(body: bytes) -> bytes | None:
    """The body with its ``NaN``, ``Infinity`` and half surrogates made harmless.

    A word becomes an object that :func:`strict_value` reads as a :class:`Word`, a half surrogate
    becomes a control character; neither fits any column. What stands in strings stays as it is.

    Returns:
        None where there is nothing of the kind.
    """
    if _SUSPICIOUS.search(body) is None:
        return None
    pieces: list[bytes] = []
    changed = False
    place = 0
    while True:
        clean = _end(_CLEAN, body, place)
        token = _end(_TOKEN, body, clean)
        if token == place:
            pieces.append(body[place:])
            return b"".join(pieces) if changed else None
        pieces.append(body[place:clean])
        found = body[clean:token]
        mended = _mended(found)
        changed = changed or mended != found
        pieces.append(mended)
        place = token


def _end(pattern: re.Pattern[bytes], body: bytes, place: int) -> int:
    """Where a match that begins at ``place`` ends; ``place`` itself where there is none."""
    match = pattern.match(body, place)
    return place if match is None else match.end()


def _mended(token: bytes) -> bytes:
    """A string without its half surrogates, or what stands for a word."""
    if not token or token.startswith(b'"'):
        return _ESCAPES.sub(_without_halves, token)
    return b'{"\\u0000":"%b"}' % token


def _without_halves(escape: re.Match[bytes]) -> bytes:
    return b"\\u0000" if escape["half"] else escape.group()


def _single_keys(pairs: list[tuple[str, Any]]) -> Any:
    members = dict(pairs)
    if len(members) == len(pairs):
        word = members.get(_MARK)
        return Word(word) if len(pairs) == 1 and isinstance(word, str) else members
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise FaultyJsonError("comes twice", key)
        seen.add(key)
    return members


def _integer(digits: str) -> object:
    too_long = len(digits) > _LONGEST_INTEGER
    return Word(f"a whole number of {len(digits)} digits") if too_long else int(digits)


def _number(text: str) -> object:
    value = float(text)
    return Word(text) if math.isinf(value) else value
