"""Which numbers of a revision belong to a slice of traffic, and how close the match is.

A revision may carry segments::

    {"edges": {"sampling_temperature": [0.5, 1.0], "context_length": [4096]},
     "entries": [{"tags": {"domain": "code", "sampling_temperature": 0},
                  "temperatures": [γ], "affine": {"slopes": [γ], "intercepts": [γ]} | null}]}

Callers send raw values; numeric ones fall into buckets by the revision's own edges (bucket i holds
values from edge i − 1, inclusive, to edge i, exclusive). The entry that agrees with the request on
most tags wins; an entry with a tag that the request does not state, or states otherwise, never
does. Nothing is matched silently: what was asked for and what was found are both in the answer.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from calib.errors import CalibrationValueError

__all__ = ["SEGMENT_TAGS", "SegmentMatch", "UnmatchedSegment", "match_segment"]

UnmatchedSegment = Literal["pooled", "identity"]

_NUMERIC = ("sampling_temperature", "context_length")
SEGMENT_TAGS = (*_NUMERIC, "domain", "adapter", "acceptance_rule", "draft_mode")
"""Tags known before verification, by which traffic may be sliced."""

_LONGEST_VALUE = 128


@dataclass(frozen=True, slots=True)
class SegmentMatch:
    """What a segment request found.

    Attributes:
        requested: the tags as they were sent.
        matched: tags of the entry that was found, buckets by number; None without one.
        level: ``"segment"`` when an entry was found, else ``"pooled"``.
        numbers: the entry, or None.
    """

    requested: Mapping[str, str]
    matched: Mapping[str, Any] | None
    level: Literal["segment", "pooled"]
    numbers: Mapping[str, Any] | None


def match_segment(segments: Mapping[str, Any] | None, requested: Mapping[str, str]) -> SegmentMatch:
    """The entry of ``segments`` that fits the requested tags best.

    Args:
        segments: what the revision carries; None matches nothing.
        requested: raw values by tag.

    Raises:
        CalibrationValueError: an unknown tag, an empty or overlong value, or a text where the tag
            is a number.
    """
    held = segments or {}
    buckets = {
        tag: _bucket(tag, value, held.get("edges", {}).get(tag)) for tag, value in requested.items()
    }
    best: Mapping[str, Any] | None = None
    for entry in held.get("entries", ()):
        tags = entry["tags"]
        agrees = all(tag in buckets and buckets[tag] == value for tag, value in tags.items())
        if tags and agrees and (best is None or len(tags) > len(best["tags"])):
            best = entry
    if best is None:
        return SegmentMatch(dict(requested), None, "pooled", None)
    return SegmentMatch(dict(requested), best["tags"], "segment", best)


def _bucket(tag: str, value: str, edges: list[float] | None) -> str | float:
    """What entries are compared with: the text itself, or the number of the bucket."""
    field = f"segment.{tag}"
    if tag not in SEGMENT_TAGS:
        raise CalibrationValueError(field, value, f"tags are {', '.join(SEGMENT_TAGS)}")
    if not value or len(value) > _LONGEST_VALUE:
        raise CalibrationValueError(field, value, f"give 1 to {_LONGEST_VALUE} characters")
    if tag not in _NUMERIC:
        return value
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or number < 0.0:
        raise CalibrationValueError(field, value, "give a finite number of 0 or more")
    return number if edges is None else bisect_right(edges, number)
