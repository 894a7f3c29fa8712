"""The calibration key's digest, as the service computes it.

The service hashes the key's RFC 8785 JSON. Its fields are texts, whole numbers and null under ASCII
names, and for those the standard library writes the same bytes, so no further dependency is needed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from dspark_calib_client.errors import ClientConfigurationError

__all__ = ["is_digest", "key_digest"]

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DEFAULTS = {
    "confidence_source": "head",
    "verification_method": "rejection",
    "draft_vocabulary_hash": None,
}
_FIELDS = {
    "target_model",
    "target_revision",
    "target_quantization",
    "draft_model",
    "draft_revision",
    "draft_quantization",
    "gamma",
    "slot_convention",
    *_DEFAULTS,
}


def is_digest(value: object) -> bool:
    """Whether ``value`` is a SHA-256 in 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def key_digest(key: str | Mapping[str, Any]) -> str:
    """The digest of a calibration key: 64 hexadecimal digits.

    Args:
        key: the digest itself, or the key's fields as they were registered. Optional fields may be
            absent.

    Raises:
        ClientConfigurationError: no digest, unknown or missing fields, or a value of another
            type than the key has.
    """
    if isinstance(key, str):
        if not is_digest(key):
            raise ClientConfigurationError("key", key, "give 64 hexadecimal digits or the fields")
        return key
    if not isinstance(key, Mapping):
        raise ClientConfigurationError("key", key, "give a digest or the key's fields")
    fields = {**_DEFAULTS, **key}
    wrong = sorted(str(name) for name in set(fields) ^ _FIELDS)
    if wrong:
        raise ClientConfigurationError("key", wrong, f"fields are {sorted(_FIELDS)}")
    for name, value in fields.items():
        if not _fits(name, value):
            remedy = "give the block size" if name == "gamma" else "give a text"
            raise ClientConfigurationError(f"key.{name}", value, remedy)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    try:
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except UnicodeEncodeError as error:  # a lone surrogate
        raise ClientConfigurationError("key", key, "give texts that UTF-8 can hold") from error


def _fits(name: str, value: object) -> bool:
    if name == "gamma":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, str) or (value is None and name == "draft_vocabulary_hash")
