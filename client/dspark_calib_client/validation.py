"""What an answer must be before one number of it is used, or its ETag remembered.

The service's ETag is the SHA-256 of the body's bytes, so a body that was cut, mixed or rewritten on
its way is found out. What then parses must still be the drafter's, for this gamma and this key, and
every number finite and within [0.05, 20].
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dspark_calib_client.errors import InvalidAnswerError
from dspark_calib_client.instants import seconds_of
from dspark_calib_client.keys import is_digest

__all__ = [
    "LARGEST_TEMPERATURE",
    "SMALLEST_TEMPERATURE",
    "Expected",
    "Publication",
    "checked_scales",
    "etag_digest",
    "read_publication",
]

SMALLEST_TEMPERATURE = 0.05
LARGEST_TEMPERATURE = 20.0

_ETAG = re.compile(r'(?:W/)?"([0-9a-f]{64})"', re.ASCII)
_LARGEST_INTEGER = 2**53 - 1
_LARGEST_FLOAT = sys.float_info.max  # also what NaN and infinity fail
_LONGEST_WORD = 64


@dataclass(frozen=True)
class Expected:
    """What was asked for.

    Attributes:
        drafter: the drafter's name.
        gamma: draft positions.
        key: digest of the calibration key; None accepts any.
    """

    drafter: str
    gamma: int
    key: str | None


@dataclass(frozen=True)
class Publication:
    """A validated answer.

    Attributes:
        number: the drafter's publication, which only grows.
        revision: names the numbers; 0 is identity.
        values: temperatures, one per position.
        slopes, intercepts: the affine form, or None.
        status: the service's word for them.
        digest: of key and numbers; None where no revision holds them.
        key: digest of the calibration key they are for.
        etag: as it was received.
        valid_until: seconds since the epoch, or None.
        exploration: share of blocks to verify in full, or None.
    """

    number: int
    revision: int
    values: tuple[float, ...]
    slopes: tuple[float, ...] | None
    intercepts: tuple[float, ...] | None
    status: str
    digest: str | None
    key: str | None
    etag: str
    valid_until: float | None
    exploration: float | None

    def same_numbers(self, other: Publication) -> bool:
        """Whether both say the same about every position."""
        mine = (self.values, self.slopes, self.intercepts)
        return mine == (other.values, other.slopes, other.intercepts)


def etag_digest(etag: str | None) -> str | None:
    """The SHA-256 in an ETag, strong or weak; None where it holds none."""
    found = _ETAG.fullmatch(etag.strip()) if etag else None
    return None if found is None else found.group(1)


def read_publication(body: bytes, etag: str | None, expected: Expected) -> Publication:
    """The publication in the body of a 200.

    Raises:
        InvalidAnswerError: ``wrong_etag``, ``not_json``, ``other_drafter``, ``other_gamma``,
            ``other_key`` or ``bad_field``.
    """
    if etag is None or etag_digest(etag) != hashlib.sha256(body).hexdigest():
        raise InvalidAnswerError("wrong_etag", f"ETag {etag!r:.90} is not the body's SHA-256")
    fields = _json_object(body)
    if fields.get("drafter") != expected.drafter:
        raise InvalidAnswerError("other_drafter", f"answer for {fields.get('drafter')!r:.90}")
    if _whole(fields, "gamma", 1) != expected.gamma:
        raise InvalidAnswerError("other_gamma", f"answer for gamma {fields['gamma']}")
    key = _digest(fields, "key")
    if expected.key is not None and key != expected.key:
        raise InvalidAnswerError("other_key", f"answer for key {key!r:.90}")
    slopes, intercepts = _affine(fields.get("affine"), expected.gamma)
    return Publication(
        number=_whole(fields, "publication", 0),
        revision=_whole(fields, "revision", 0),
        values=checked_scales("temperatures", fields.get("temperatures"), expected.gamma),
        slopes=slopes,
        intercepts=intercepts,
        status=_word(fields, "status"),
        digest=_digest(fields, "digest"),
        key=key,
        etag=etag,
        valid_until=_instant(fields.get("valid_until")),
        exploration=_share(fields.get("exploration")),
    )


def checked_scales(field: str, values: Any, gamma: int) -> tuple[float, ...]:
    """``gamma`` temperatures or slopes, each finite and within [0.05, 20].

    Raises:
        InvalidAnswerError: ``bad_field``.
    """
    numbers = _numbers(field, values, gamma)
    for number in numbers:
        if not SMALLEST_TEMPERATURE <= number <= LARGEST_TEMPERATURE:
            raise _bad(field, number)
    return numbers


def _json_object(body: bytes) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise InvalidAnswerError("bad_field", f"{word} is no JSON number")

    try:
        parsed = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # broken UTF-8 is a ValueError too
        raise InvalidAnswerError("not_json", f"{error!s:.90}") from error
    if not isinstance(parsed, dict):
        raise InvalidAnswerError("not_json", f"a JSON {type(parsed).__name__}, not an object")
    return parsed


def _numbers(field: str, values: Any, gamma: int) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != gamma:
        raise _bad(field, values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _bad(field, value)
        if not abs(value) <= _LARGEST_FLOAT:
            raise _bad(field, value)
    return tuple(map(float, values))


def _affine(value: Any, gamma: int) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    if value is None:
        return None, None
    if not isinstance(value, Mapping):
        raise _bad("affine", value)
    slopes = checked_scales("affine.slopes", value.get("slopes"), gamma)
    return slopes, _numbers("affine.intercepts", value.get("intercepts"), gamma)


def _whole(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _bad(name, value)
    if not least <= value <= _LARGEST_INTEGER:
        raise _bad(name, value)
    return value


def _word(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.isprintable() or len(value) > _LONGEST_WORD:
        raise _bad(name, value)
    return value


def _digest(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not is_digest(value):
        raise _bad(name, value)
    return value


def _instant(value: Any) -> float | None:
    if value is None:
        return None
    try:
        return seconds_of(value)
    except (TypeError, ValueError) as error:
        raise _bad("valid_until", value) from error


def _share(value: Any) -> float | None:
    if value is None:
        return None
    (share,) = _numbers("exploration", [value], 1)
    if not 0.0 <= share <= 1.0:
        raise _bad("exploration", value)
    return share


def _bad(field: str, value: Any) -> InvalidAnswerError:
    return InvalidAnswerError("bad_field", f"{field} is {value!r:.90}")
