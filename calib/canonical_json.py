"""Canonical JSON (RFC 8785) and the six significant digits of published numbers.

Equal values give equal bytes on every machine, so bytes can be hashed, compared and served as they
are. Numbers are rounded before they are validated: what was checked is what is served.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import rfc8785

from calib.errors import FormatError, InvalidInputError

__all__ = [
    "canonical_json",
    "parse_json_object",
    "plain_json",
    "round_numbers",
    "round_significant",
    "sha256_hex",
]

_LARGEST_INTEGER = 2**53 - 1  # RFC 8785 numbers are IEEE doubles


def round_significant(value: float) -> float:
    """``value`` rounded to six significant decimal digits, as every published number is.

    Examples:
        >>> round_significant(1.58489322662)
        1.58489
    """
    return float(f"{value:.6g}")


def round_numbers(value: Any, digits: int = 6) -> Any:
    """``value`` with every float in it at so many significant digits; tuples become lists.

    Examples:
        >>> round_numbers({"slopes": (1 / 3, 2), "name": "x"}, digits=3)
        {'slopes': [0.333, 2], 'name': 'x'}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: round_numbers(item, digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [round_numbers(item, digits) for item in value]
    return value


def plain_json(value: Any, field: str = "value") -> Any:
    """A copy of ``value`` made of dict, list, str, int, float, bool and None only.

    Mappings, lists, tuples and NumPy scalars are converted; every number is finite.

    Args:
        value: what to convert.
        field: name used in errors; keys and indices are appended.

    Raises:
        InvalidInputError: for NaN, infinity, integers beyond ±(2^53 - 1), keys that are no strings
            and any other type.
    """
    if value is None or isinstance(value, bool | np.bool_):
        return value if value is None else bool(value)
    if isinstance(value, str):
        return str(value)  # also turns a StrEnum into its word
    if isinstance(value, int | np.integer) and abs(int(value)) <= _LARGEST_INTEGER:
        return int(value)
    if isinstance(value, float | np.floating) and np.isfinite(value):
        return float(value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): plain_json(item, f"{field}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, f"{field}[{index}]") for index, item in enumerate(value)]
    raise InvalidInputError(
        field, value, "JSON holds null, booleans, text, finite numbers, lists and text-keyed maps"
    )


def canonical_json(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value: sorted keys, shortest numbers, UTF-8, no spaces.

    Raises:
        InvalidInputError: for what JSON cannot hold, NaN and infinity among them.

    Examples:
        >>> canonical_json({"b": 1.0, "a": [0.1, None]})
        b'{"a":[0.1,null],"b":1}'
    """
    return rfc8785.dumps(plain_json(value))


def sha256_hex(value: Any) -> str:
    """SHA-256 of :func:`canonical_json` as 64 lower-case hexadecimal digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def parse_json_object(data: bytes | str, source: str) -> dict[str, Any]:
    """The JSON object in ``data``.

    Numbers beyond the range of a double are read as infinity, so that whoever validates the field
    can name it; the words NaN and Infinity, which JSON does not have, are refused here.

    Args:
        data: UTF-8 bytes or text.
        source: name of what is read, used in errors.

    Raises:
        FormatError: when ``data`` is no JSON or no object.
    """

    def refuse(word: str) -> NoReturn:
        raise FormatError(source, f"{word} is no JSON number", "write null instead")

    try:
        parsed = json.loads(data, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(source, f"is no JSON: {error}", "send one JSON object") from error
    if not isinstance(parsed, dict):
        raise FormatError(source, f"is a JSON {type(parsed).__name__}", "send one JSON object")
    return parsed
