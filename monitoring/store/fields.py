"""What columns may hold: checked texts and slugs, canonical JSON both ways."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from calib.canonical_json import canonical_json, parse_json_object
from calib.errors import InvalidInputError

__all__ = [
    "LONGEST_IDENTIFIER",
    "LONGEST_TEXT",
    "checked_identifier",
    "checked_slug",
    "checked_text",
    "clamped",
    "is_slug",
    "json_text",
    "read_json",
    "read_optional_json",
]

LONGEST_SLUG: Final = 128
LONGEST_IDENTIFIER: Final = 255  # two of them in UTF-8 still fit into one index entry everywhere
LONGEST_TEXT: Final = 1024
_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")


def is_slug(value: str) -> bool:
    """Whether ``value`` can be the name of a drafter or a token, or the id of a job.

    Look-ups ask first: what is no slug is not there, and drivers choke on some of it.
    """
    return len(value) <= LONGEST_SLUG and _SLUG.fullmatch(value) is not None


def clamped(value: int, bits: int = 63) -> int:
    """``value`` within what a column of this many bits compares with; below 0 it is -1.

    No row has the largest number, so that a number beyond it is not found instead of refused.
    """
    return max(-1, min(value, (1 << bits) - 1))


def checked_slug(field: str, value: str) -> str:
    """``value`` when it is ``[a-z0-9][a-z0-9._-]*`` of at most 128 characters.

    Raises:
        InvalidInputError: naming field, value and remedy.
    """
    if not _is_text(value) or not is_slug(value):
        raise InvalidInputError(
            field,
            value,
            f"use at most {LONGEST_SLUG} of a-z, 0-9, '.', '_' and '-', a letter or digit first",
        )
    return value


def checked_text(field: str, value: str, longest: int = LONGEST_TEXT) -> str:
    """``value`` when every database can hold it: text without NUL that encodes as UTF-8.

    Raises:
        InvalidInputError: naming field, value and remedy.
    """
    if not _is_text(value) or not value or len(value) > longest:
        raise InvalidInputError(field, value, f"give a text of 1 to {longest} characters")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidInputError(field, value, "leave out NUL and lone surrogates")
    return value


def checked_identifier(field: str, value: str) -> str:
    """:func:`checked_text` of at most 255 characters, as indexed columns hold them.

    Raises:
        InvalidInputError: naming field, value and remedy.
    """
    return checked_text(field, value, LONGEST_IDENTIFIER)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def json_text(value: Mapping[str, Any]) -> str:
    """The canonical JSON (RFC 8785) of a mapping, as text.

    Raises:
        InvalidInputError: for what JSON cannot hold, NaN and infinity among them.
    """
    return canonical_json(value).decode()


def read_json(text: str) -> dict[str, Any]:
    """The mapping that :func:`json_text` wrote.

    Raises:
        FormatError: when the column holds something else.
    """
    return parse_json_object(text, "stored JSON")


def read_optional_json(text: str | None) -> dict[str, Any] | None:
    """:func:`read_json`, or None where nothing is stored."""
    return None if text is None else read_json(text)
