"""Find the numbers of a slice of traffic among the segments that a revision carries.

A revision's ``segments`` are a table of :class:`calib.segment_serving.SegmentTable` as plain JSON::

    {"format": "dspark-calib/segments/1", "gamma": γ, "buckets": {tag: [edge]}, "levels": [[tag]],
     "seen": {tag: [bucket]}, "unseen": "identity" | "parent" | "nearest",
     "segments": [{"tags": {tag: bucket}, "rows": n, "temperatures": [γ], "affine": {…} | null,
                   "statuses": [γ]}]}

Callers send raw values; numeric ones fall into buckets by the revision's own edges. The finest
segment that holds the request answers; a value that no row had is served by its parent. Nothing is
matched silently: what was asked for and what was found are both in the answer.

Sampling temperature and acceptance rule change what acceptance means. A bucket of them that no row
had is another event: by the service's setting it gets the parent's numbers, flagged, or identity.

Read here from the JSON, so that the process that answers polls stays small; a test holds it against
the table itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from calib.errors import CalibrationValueError, ConfigurationError
from calib.segment_tags import NUMERIC_TAGS, TAGS, SegmentBuckets, SegmentKey, SegmentLevels

__all__ = ["SEGMENT_TAGS", "SegmentMatch", "UnmatchedSegment", "match_segment"]

UnmatchedSegment = Literal["pooled", "identity"]

SEGMENT_TAGS = (*NUMERIC_TAGS, "domain", "adapter", "acceptance_rule", "draft_mode")
"""Tags known before verification, by which traffic may be sliced."""

STRICT_TAGS: Final = ("acceptance_rule", "sampling_temperature")
"""Tags whose unseen values are another event, not a thin segment."""

_LONGEST_VALUE: Final = 128


@dataclass(frozen=True, slots=True)
class SegmentMatch:
    """What a segment request found.

    Attributes:
        requested: the tags as they were sent.
        matched: buckets of the segment that was found, by tag; None without one.
        level: ``"segment"`` when one was found, ``"identity"`` where its numbers would mean another
            event and the setting says so, else ``"pooled"``.
        numbers: the segment, or None.
    """

    requested: Mapping[str, str]
    matched: Mapping[str, str] | None
    level: Literal["segment", "pooled", "identity"]
    numbers: Mapping[str, Any] | None


def match_segment(
    segments: Mapping[str, Any] | None,
    requested: Mapping[str, str],
    unmatched: UnmatchedSegment = "pooled",
) -> SegmentMatch:
    """The finest segment that holds the requested tags.

    Args:
        segments: the table that the revision carries; None matches nothing.
        requested: raw values by tag.
        unmatched: what a request gets whose tags mean another event than any row had, and, from a
            revision without segments, any request with tags.

    Raises:
        CalibrationValueError: an unknown tag, an empty or overlong value, or a text where the tag
            is a number.
    """
    buckets = _buckets(segments)
    wanted = {tag: _bucket(buckets, tag, value) for tag, value in requested.items()}
    if segments is None:
        level: Literal["pooled", "identity"] = "pooled"
        if requested and unmatched == "identity":
            level = "identity"
        return SegmentMatch(dict(requested), None, level, None)
    known = {tag: bucket for tag, bucket in wanted.items() if tag in TAGS}
    for tag in _unseen(segments, known):
        if unmatched == "identity":
            return SegmentMatch(dict(requested), None, "identity", None)
        del known[tag]
    levels = SegmentLevels(tuple(tuple(level) for level in segments["levels"]))
    entries = {SegmentKey.of(entry["tags"]): entry for entry in segments["segments"]}
    found = next(key for key in levels.candidates(SegmentKey.of(known)) if key in entries)
    if not found.items:
        return SegmentMatch(dict(requested), None, "pooled", None)
    return SegmentMatch(dict(requested), found.to_dict(), "segment", entries[found])


def _buckets(segments: Mapping[str, Any] | None) -> SegmentBuckets:
    if segments is None:
        return SegmentBuckets()
    return SegmentBuckets(**{tag: tuple(segments["buckets"][tag]) for tag in NUMERIC_TAGS})


def _unseen(segments: Mapping[str, Any], known: Mapping[str, str]) -> list[str]:
    """Strict tags of a request whose bucket no row had, where rows knew the tag at all."""
    seen = segments["seen"]
    return [
        tag for tag in STRICT_TAGS if tag in known and seen.get(tag) and known[tag] not in seen[tag]
    ]


def _bucket(buckets: SegmentBuckets, tag: str, value: str) -> str:
    """What segments are compared with: the text itself, or the name of the bucket."""
    field = f"segment.{tag}"
    if tag not in SEGMENT_TAGS:
        raise CalibrationValueError(field, value, f"tags are {', '.join(SEGMENT_TAGS)}")
    if not value or len(value) > _LONGEST_VALUE:
        raise CalibrationValueError(field, value, f"give 1 to {_LONGEST_VALUE} characters")
    if tag not in NUMERIC_TAGS:
        return value
    try:
        return buckets.bucket(tag, value)
    except ConfigurationError as error:
        remedy = "give a finite number of 0 or more"
        raise CalibrationValueError(field, value, remedy) from error
