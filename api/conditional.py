"""Conditional requests (RFC 9110 §8.8 and §13): strong ETags, If-None-Match, If-Match."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from api.problems import ProblemError

__all__ = ["EntityTags", "header_values", "none_match", "parse_tags", "require_match", "strong_tag"]

# Weak mark, then the opaque part: quoted, without quotes and control characters.
_TAG = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)')
_MOST_TAGS = 100


@dataclass(frozen=True, slots=True)
class EntityTags:
    """The tags of one If-Match or If-None-Match header.

    Attributes:
        any: whether it is ``*``, which matches whatever exists.
        strong: opaque parts of its strong tags.
        weak: opaque parts of its weak tags.
    """

    any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()


def strong_tag(body: bytes) -> str:
    """The strong ETag of a representation: its SHA-256, quoted.

    Examples:
        >>> strong_tag(b"")[:9]
        '"e3b0c442'
    """
    return f'"{hashlib.sha256(body).hexdigest()}"'


@lru_cache(maxsize=4096)
def parse_tags(value: str) -> EntityTags:
    """The tags in a header value; what is no tag is skipped, as it can match nothing.

    Args:
        value: header value, several headers joined with commas.
    """
    if value.strip() == "*":
        return EntityTags(any=True)
    strong: set[str] = set()
    weak: set[str] = set()
    position = 0
    while position < len(value) and len(strong) + len(weak) < _MOST_TAGS:
        found = _TAG.match(value, position)
        if found is None:  # go on behind the next comma
            comma = value.find(",", position)
            position = len(value) if comma < 0 else comma + 1
            continue
        (weak if found[1] else strong).add(found[2])
        position = found.end()
    return EntityTags(strong=frozenset(strong), weak=frozenset(weak))


def header_values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """All values of a header of an ASGI scope, joined with commas; None where it is absent."""
    values = [value.decode("latin-1") for key, value in headers if key == name]
    return ", ".join(values) if values else None


def none_match(if_none_match: str | None, tag: str) -> bool:
    """Whether the full representation must be sent: False means 304.

    If-None-Match compares weakly: ``W/"x"`` matches ``"x"``. ``*`` matches whatever exists.

    Args:
        if_none_match: header value, or None.
        tag: quoted strong tag of what exists.
    """
    if if_none_match is None:
        return True
    if if_none_match == tag:  # what every poll sends
        return False
    tags = parse_tags(if_none_match)
    opaque = tag.strip('"')
    return not (tags.any or opaque in tags.strong or opaque in tags.weak)


def require_match(if_match: str | None, tag: str) -> None:
    """Return when If-Match names the current representation; weak tags never do.

    Args:
        if_match: header value, or None.
        tag: quoted strong tag of what exists.

    Raises:
        ProblemError: 428 without the header, 412 when it names something else.
    """
    if if_match is None:
        raise ProblemError(
            "precondition-required", "Send the ETag of GET /v1/drafters/{drafter} in If-Match."
        )
    tags = parse_tags(if_match)
    if not (tags.any or tag.strip('"') in tags.strong):
        raise ProblemError(
            "precondition-failed",
            "If-Match names another state than the current one; read it again and decide anew.",
            headers={"ETag": tag},
        )
