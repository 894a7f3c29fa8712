"""Which media type of a poll's answer the Accept header prefers (RFC 9110 §12.5.1)."""

from __future__ import annotations

from functools import lru_cache

from api.publication_variants import MEDIA_TYPES
from monitoring.published_document import Media

__all__ = ["chosen_media"]


@lru_cache(maxsize=1024)
def chosen_media(accept: str | None) -> Media | None:
    """The preferred variant; JSON where several are equally welcome, None where none is.

    Examples:
        >>> chosen_media("*/*"), chosen_media("application/vnd.sglang.dspark-sts+json")
        ('json', 'sts')
        >>> chosen_media("text/html") is None
        True
    """
    if accept is None or not accept.strip():
        return "json"
    ranges = [_parsed(part) for part in accept.split(",") if part.strip()]
    best: Media | None = None
    best_quality = 0.0
    for media, name in MEDIA_TYPES.items():
        quality = _quality(name, ranges)
        if quality > best_quality:
            best, best_quality = media, quality
    return best


def _parsed(part: str) -> tuple[str, float]:
    """Range and quality; a quality that is no number counts as 0."""
    name, *parameters = (piece.strip() for piece in part.split(";"))
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                return name.lower(), min(1.0, max(0.0, float(value)))
            except ValueError:
                return name.lower(), 0.0
    return name.lower(), 1.0


def _quality(name: str, ranges: list[tuple[str, float]]) -> float:
    """Quality of the most specific range that takes ``name``; 0 where none does."""
    wildcard = name.partition("/")[0] + "/*"
    for wanted in (name, wildcard, "*/*"):
        found = [quality for given, quality in ranges if given == wanted]
        if found:
            return max(found)
    return 0.0
