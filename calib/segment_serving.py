"""What is published of segments: numbers an engine can apply, by tags it knows of a request.

A table holds the served numbers of the pool and of every segment, and answers raw tags with the
finest segment that holds the request. What it could not match is said: ``level`` and ``matched``
name what is served, ``unmatched`` what was asked for in vain.

Sampling temperature and acceptance rule change what acceptance means, so a bucket of them that no
row had is no thin segment but another event: by the table's setting it is served identity, the
parent, or the numbers of the nearest temperature, flagged. Unseen values of other tags are served
by their parent.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from calib.calibration import Calibration, Form
from calib.calibration_values import checked_gamma
from calib.canonical_json import canonical_json, parse_json_object, sha256_hex
from calib.errors import CalibrationValueError, ConfigurationError, FormatError
from calib.records import AcceptanceRecords
from calib.segment_tags import (
    NUMERIC_TAGS,
    POOL,
    TAGS,
    SegmentBuckets,
    SegmentKey,
    SegmentLevels,
    leaf_segments,
)
from calib.served_segment import ServedSegment, pool_segment
from calib.sigmoid import sigmoid_fp32

__all__ = ["STRICT_TAGS", "SegmentAnswer", "SegmentTable", "ServedSegment", "Unseen"]

FORMAT = "dspark-calib/segments/1"
STRICT_TAGS = ("acceptance_rule", "sampling_temperature")

Unseen = Literal["identity", "parent", "nearest"]


@dataclass(frozen=True, slots=True)
class SegmentAnswer:
    """What a request is served.

    Attributes:
        requested: buckets of the tags that were asked for.
        matched: buckets of the segment that answers; empty for pool and identity.
        level: tags of that segment joined by ``+``, ``pool`` or ``identity``.
        unmatched: requested tags that the answer does not speak of.
        nearest: buckets that stand in for an unseen sampling temperature.
        rows: how much is known of the segment; 0 for identity.
        temperatures: per position.
        affine: slopes and intercepts per position, or None.
    """

    requested: Mapping[str, str]
    matched: Mapping[str, str]
    level: str
    unmatched: tuple[str, ...]
    nearest: Mapping[str, str]
    rows: int
    temperatures: tuple[float, ...]
    affine: Mapping[str, list[float]] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, as in an answer to a poll."""
        affine = None if self.affine is None else dict(self.affine)
        return {
            "requested": dict(self.requested),
            "matched": dict(self.matched),
            "level": self.level,
            "unmatched": list(self.unmatched),
            "nearest": dict(self.nearest),
            "rows": self.rows,
            "temperatures": list(self.temperatures),
            "affine": affine,
        }


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Served numbers by segment; the pool is always there.

    Attributes:
        gamma: draft positions.
        buckets: edges of numeric tags.
        levels: which segments are told apart.
        segments: by key.
        seen: buckets of each tag that some fitted row had; empty where no row knew the tag.
        unseen: what an unseen sampling temperature or acceptance rule is served: ``identity``
            (all ones), ``parent`` (the answer without that tag), or ``nearest`` (the nearest
            temperature; identity for a rule). Each is flagged in the answer.

    Raises:
        ConfigurationError: another word, or no pool.
        CalibrationValueError: segments of another γ.
    """

    gamma: int
    buckets: SegmentBuckets
    levels: SegmentLevels
    segments: Mapping[SegmentKey, ServedSegment]
    seen: Mapping[str, tuple[str, ...]]
    unseen: Unseen = "identity"

    def __post_init__(self) -> None:
        gamma = checked_gamma(self.gamma)
        if self.unseen not in get_args(Unseen):
            raise ConfigurationError("unseen", self.unseen, f"give one of {get_args(Unseen)}")
        if POOL not in self.segments:
            raise ConfigurationError("segments", len(self.segments), "give the pool's numbers too")
        for segment in self.segments.values():
            if len(segment.temperatures) != gamma:
                width = len(segment.temperatures)
                raise CalibrationValueError("temperatures", width, f"give {gamma} per segment")
        object.__setattr__(self, "segments", MappingProxyType(dict(self.segments)))
        object.__setattr__(self, "seen", MappingProxyType(dict(self.seen)))

    @classmethod
    def of_pool(cls, calibration: Calibration, rows: int = 0) -> Self:
        """The table of a calibration without segments: every request is served the pool."""
        pool = pool_segment(calibration, rows)
        return cls(calibration.gamma, SegmentBuckets(), SegmentLevels(), {POOL: pool}, {})

    @property
    def digest(self) -> str:
        """SHA-256 (hexadecimal) of the canonical JSON: equal tables, equal digests."""
        return sha256_hex(self.to_dict())

    def answer(self, tags: Mapping[str, object], *, gamma: int | None = None) -> SegmentAnswer:
        """Numbers for a request with these raw tags.

        Args:
            tags: raw values by tag, as ``{"domain": "code", "sampling_temperature": 0.7}``;
                numbers may be text. None is unknown, as is a tag that is not given.
            gamma: draft positions that are run; all when None.

        Raises:
            ConfigurationError: an unknown tag, or a value that is not of its kind.
            CalibrationValueError: a γ above the fitted one.

        Examples:
            >>> table = SegmentTable.of_pool(Calibration.from_temperatures([1.5, 2.0], gamma=2))
            >>> answer = table.answer({"domain": "code"})
            >>> answer.level, answer.unmatched, answer.temperatures
            ('pool', ('domain',), (1.5, 2.0))
        """
        width = self.gamma if gamma is None else checked_gamma(gamma)
        if width > self.gamma:
            remedy = f"this table has {self.gamma} positions; fit a longer one"
            raise CalibrationValueError("gamma", width, remedy)
        key = self.buckets.key(tags)
        place, nearest = self._placed(key)
        if place is None:
            return _answer(key, None, {}, width)
        return _answer(key, self._resolve(place), nearest, width)

    def numbers(
        self, records: AcceptanceRecords, form: Form = "temperatures"
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Slope and intercept of every row as it would be served, [N, γ] each.

        ``"temperatures"`` gives 1/T and 0; ``"affine"`` likewise where a segment has no affine
        form, identity included.
        """
        codes, keys = leaf_segments(records, self.buckets, TAGS)
        slopes, intercepts = np.ones((len(keys), self.gamma)), np.zeros((len(keys), self.gamma))
        for row, key in enumerate(keys):
            segment = self.served_to(key)
            if segment is None:
                continue
            slopes[row] = 1.0 / np.array(segment.temperatures)
            if form == "affine" and segment.slopes is not None:
                slopes[row], intercepts[row] = segment.slopes, segment.intercepts
        return slopes[codes], intercepts[codes]

    def served_to(self, key: SegmentKey) -> ServedSegment | None:
        """The segment that answers requests with these buckets; None for identity."""
        place, _ = self._placed(key)
        return None if place is None else self._resolve(place)

    def survival(
        self, records: AcceptanceRecords, form: Form = "temperatures"
    ) -> NDArray[np.float32]:
        """Survival of every row with the numbers it would be served, fp32 [N, γ].

        Raises:
            CalibrationValueError: records of another γ.
        """
        if records.gamma != self.gamma:
            raise CalibrationValueError("gamma", records.gamma, f"this table is for {self.gamma}")
        slopes, intercepts = self.numbers(records, form)
        odds = records.confidence_logits * slopes + intercepts
        return np.cumprod(sigmoid_fp32(odds.astype(np.float32)), axis=1, dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, segments sorted."""
        return {
            "format": FORMAT,
            "gamma": self.gamma,
            "buckets": self.buckets.to_dict(),
            "levels": self.levels.to_list(),
            "unseen": self.unseen,
            "seen": {tag: list(self.seen[tag]) for tag in sorted(self.seen)},
            "segments": [self.segments[key].to_dict() for key in sorted(self.segments)],
        }

    def to_json(self) -> bytes:
        """Canonical JSON (RFC 8785) of :meth:`to_dict`."""
        return canonical_json(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The table that :meth:`to_dict` wrote.

        Raises:
            FormatError: another format, or fields that are missing.
            ConfigurationError: edges, levels or tags that are wrong.
            CalibrationValueError: a number that may not be served.
        """
        if values.get("format") != FORMAT:
            raise FormatError("segments", f"'format' is not {FORMAT!r}", "write it with to_dict()")
        try:
            served = [ServedSegment.from_dict(entry) for entry in values["segments"]]
            edges = {tag: tuple(values["buckets"][tag]) for tag in NUMERIC_TAGS}
            levels = tuple(tuple(level) for level in values["levels"])
            seen = {tag: tuple(found) for tag, found in values["seen"].items()}
            gamma, unseen = values["gamma"], values["unseen"]
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError("segments", f"missing or wrong: {error}", "fetch it again") from error
        return cls(
            gamma=gamma,
            buckets=SegmentBuckets(**edges),
            levels=SegmentLevels(levels),
            segments={segment.key: segment for segment in served},
            seen=seen,
            unseen=unseen,
        )

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """The table that :meth:`to_json` wrote; errors as :meth:`from_dict`."""
        return cls.from_dict(parse_json_object(data, "segments"))

    def with_unseen(self, unseen: Unseen) -> Self:
        """The same numbers under another setting."""
        return replace(self, unseen=unseen)

    def _placed(self, key: SegmentKey) -> tuple[SegmentKey | None, dict[str, str]]:
        """Where a request is looked up, None for identity, and buckets that stand in for others."""
        buckets = key.to_dict()
        nearest: dict[str, str] = {}
        for tag in STRICT_TAGS:
            seen = self.seen.get(tag, ())
            # Nobody recorded the tag: then it cannot tell apart what was fitted.
            if tag not in buckets or not seen or buckets[tag] in seen:
                continue
            if self.unseen == "parent":
                del buckets[tag]
            elif self.unseen == "nearest" and tag in NUMERIC_TAGS:
                buckets[tag] = nearest[tag] = self._nearest(tag, buckets[tag])
            else:
                return None, {}
        return SegmentKey.of(buckets), nearest

    def _nearest(self, tag: str, bucket: str) -> str:
        """The seen bucket the fewest edges away; the lower one of two."""
        labels = self.buckets.labels(tag)
        own = labels.index(bucket)
        places = sorted(labels.index(label) for label in self.seen[tag])
        return labels[min(places, key=lambda place: abs(place - own))]

    def _resolve(self, key: SegmentKey) -> ServedSegment:
        candidates = self.levels.candidates(key)
        return next(self.segments[found] for found in candidates if found in self.segments)


def _answer(
    key: SegmentKey, segment: ServedSegment | None, nearest: Mapping[str, str], gamma: int
) -> SegmentAnswer:
    matched = {} if segment is None else segment.key.to_dict()
    requested = key.to_dict()
    level = "identity" if segment is None else "+".join(matched) or "pool"
    return SegmentAnswer(
        requested=requested,
        matched=matched,
        level=level,
        unmatched=tuple(tag for tag, found in requested.items() if matched.get(tag) != found),
        nearest={tag: found for tag, found in nearest.items() if matched.get(tag) == found},
        rows=0 if segment is None else segment.rows,
        temperatures=(1.0,) * gamma if segment is None else segment.temperatures[:gamma],
        affine=None if segment is None else segment.affine(gamma),
    )
