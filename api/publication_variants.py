"""One publication in memory, with the bytes, ETag and headers of every variant asked for so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from api.conditional import strong_tag
from monitoring.published_document import Media, render

if TYPE_CHECKING:
    from monitoring.segment_match import UnmatchedSegment
    from monitoring.store.drafters import Drafter
    from monitoring.store.publications import Publication

__all__ = ["CACHE_CONTROL", "MEDIA_TYPES", "Published", "Variant"]

MEDIA_TYPES: dict[Media, str] = {
    "json": "application/json",
    "sts": "application/vnd.sglang.dspark-sts+json",
}
CACHE_CONTROL = "no-cache, stale-if-error=86400"

# Segments come from outside, so the number of variants has no bound of its own.
_MOST_VARIANTS = 256


@dataclass(frozen=True, slots=True)
class Variant:
    """The answer to one kind of poll.

    Attributes:
        body: its bytes.
        tag: strong ETag, quoted.
        tag_bytes: the same as it comes in a header.
        headers: headers of a 200.
        unchanged_headers: headers of a 304.
    """

    body: bytes
    tag: str
    tag_bytes: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    unchanged_headers: tuple[tuple[bytes, bytes], ...]


class Published:
    """What is published for one drafter.

    Attributes:
        drafter: the drafter as of this publication.
        publication: number, revision and stored document.
        edition: orders what is published for the drafter; grows with the number, and with every
            change of exploration under it.
    """

    def __init__(self, drafter: Drafter, publication: Publication) -> None:
        self.drafter = drafter
        self.publication = publication
        self.number = publication.number
        self.edition = (publication.number, drafter.exploration_changes)
        self._variants: dict[object, Variant] = {}
        self._digests: dict[int, frozenset[str]] = {}

    @cached_property
    def gamma(self) -> int:
        """Positions published."""
        return self.drafter.gamma

    def accepted_digests(self, gamma: int) -> frozenset[str]:
        """Key digests of engines that these numbers are for.

        The drafter's own, and for an engine that runs fewer positions the digest of the same key
        with its gamma: how many positions are run does not change what each of them means.
        """
        found = self._digests.get(gamma)
        if found is None:
            key = self.drafter.key
            found = frozenset({key.digest, replace(key, gamma=gamma).digest})
            self._digests[gamma] = found
        return found

    def variant(
        self,
        *,
        gamma: int,
        segment: tuple[tuple[str, str], ...] = (),
        media: Media = "json",
        unmatched: UnmatchedSegment = "pooled",
        exploration: float | None = None,
    ) -> Variant:
        """Bytes and headers of one variant, made once.

        Raises:
            CalibrationValueError: as :func:`monitoring.published_document.render`.
        """
        place = (gamma, segment, media)
        found = self._variants.get(place)
        if found is None:
            body = render(
                self.publication.document,
                gamma=gamma,
                segment=dict(segment),
                media=media,
                unmatched=unmatched,
                exploration=exploration,
            )
            found = self._made(body, media)
            if len(self._variants) >= _MOST_VARIANTS:
                self._variants.clear()
            self._variants[place] = found
        return found

    def _made(self, body: bytes, media: Media) -> Variant:
        tag = strong_tag(body)
        shared = _encoded(
            {
                "ETag": tag,
                "Cache-Control": CACHE_CONTROL,
                "Vary": "Accept",
                "Publication": str(self.number),
            }
        )
        own = _encoded({"Content-Type": MEDIA_TYPES[media], "Content-Length": str(len(body))})
        return Variant(body, tag, tag.encode("ascii"), (*own, *shared), shared)


def _encoded(headers: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(
        (name.lower().encode("ascii"), value.encode("ascii")) for name, value in headers.items()
    )
