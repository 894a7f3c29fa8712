"""Slices of traffic: what is known of a request before its tokens are verified.

A *tag* is one such fact, a *bucket* what is made of its value: text stays as it is, numbers fall
between edges that are stored with every fit, so that a request is bucketed as the rows were. A
*segment* is a set of buckets, the empty set being all traffic (the pool).

*Levels* say which sets of tags are told apart, from coarse to fine. A segment's parent is the
segment of the last coarser level whose tags are a subset of its own, the pool without one; a thin
segment is pulled to it, and traffic of no known segment is served by the next coarser one.

Letters: N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from calib.errors import ConfigurationError
from calib.records import AcceptanceRecords

__all__ = [
    "DEFAULT_LEVELS",
    "NUMERIC_TAGS",
    "POOL",
    "TAGS",
    "SegmentBuckets",
    "SegmentKey",
    "SegmentLevels",
    "leaf_segments",
    "segment_name",
]

TAGS = ("acceptance_rule", "sampling_temperature", "domain", "context_length", "adapter")
NUMERIC_TAGS = ("sampling_temperature", "context_length")

# 0 is greedy and a bucket of its own; the usual settings .6 to .8 and 1.0 are not cut apart.
TEMPERATURE_EDGES = (0.0, 0.5, 0.85, 1.15)
CONTEXT_EDGES = (512.0, 2048.0, 8192.0, 32768.0)

# Sampling temperature and acceptance rule change what acceptance means; domain, context and
# adapter change how hard it is.
DEFAULT_LEVELS = (
    ("acceptance_rule",),
    ("domain",),
    ("adapter",),
    ("sampling_temperature",),
    ("acceptance_rule", "domain"),
    ("sampling_temperature", "domain"),
    ("sampling_temperature", "domain", "context_length"),
    ("sampling_temperature", "domain", "context_length", "adapter"),
)


@dataclass(frozen=True, slots=True, order=True)
class SegmentKey:
    """A segment: buckets by tag, in the order of :data:`TAGS`. Build it with :meth:`of`.

    Attributes:
        items: (tag, bucket) pairs; none is the pool.
    """

    items: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, buckets: Mapping[str, str]) -> Self:
        """The segment of these buckets.

        Raises:
            ConfigurationError: an unknown tag, or a bucket that is no text.
        """
        unknown = sorted(set(buckets) - set(TAGS))
        texts = [str(bucket) for bucket in buckets.values()]
        if unknown or texts != list(buckets.values()) or not all(texts):
            raise ConfigurationError("segment", dict(buckets), f"give texts for tags of {TAGS}")
        return cls(tuple((tag, buckets[tag]) for tag in TAGS if tag in buckets))

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags this segment fixes."""
        return tuple(tag for tag, _ in self.items)

    def to_dict(self) -> dict[str, str]:
        """Buckets by tag."""
        return dict(self.items)

    def restricted(self, tags: Iterable[str]) -> SegmentKey | None:
        """The coarser segment of these tags; None where one of them is not fixed here."""
        wanted = set(tags)
        items = tuple(item for item in self.items if item[0] in wanted)
        return SegmentKey(items) if len(items) == len(wanted) else None


POOL = SegmentKey()


@dataclass(frozen=True, slots=True)
class SegmentBuckets:
    """Edges of the numeric tags. A value on an edge falls into the bucket below it.

    Attributes:
        sampling_temperature: increasing edges, 0 or more.
        context_length: increasing edges in tokens, 0 or more.

    Raises:
        ConfigurationError: edges that are no increasing finite numbers of at least 0.

    Examples:
        >>> buckets = SegmentBuckets()
        >>> buckets.key({"domain": "code", "sampling_temperature": 0.7}).to_dict()
        {'sampling_temperature': '0.5-0.85', 'domain': 'code'}
    """

    sampling_temperature: tuple[float, ...] = TEMPERATURE_EDGES
    context_length: tuple[float, ...] = CONTEXT_EDGES

    def __post_init__(self) -> None:
        for tag in NUMERIC_TAGS:
            edges = np.asarray(getattr(self, tag))
            numeric = edges.dtype.kind in "iuf" and edges.ndim == 1 and edges.size > 0
            if not numeric or not np.isfinite(edges).all() or edges[0] < 0:
                raise ConfigurationError(f"{tag} edges", getattr(self, tag), "give numbers >= 0")
            if (np.diff(edges.astype(np.float32)) <= 0.0).any():
                raise ConfigurationError(f"{tag} edges", getattr(self, tag), "let edges increase")
            object.__setattr__(self, tag, tuple(float(edge) for edge in edges))

    def labels(self, tag: str) -> tuple[str, ...]:
        """Names of a numeric tag's buckets, in order."""
        edges = [f"{edge:.9g}" for edge in getattr(self, tag)]  # fp32 told apart
        first = edges[0] if getattr(self, tag)[0] == 0.0 else f"0-{edges[0]}"
        between = [f"{low}-{high}" for low, high in pairwise(edges)]
        return (first, *between, f"over {edges[-1]}")

    def numbers(self, tag: str, values: NDArray[Any]) -> NDArray[np.intp]:
        """Bucket numbers of values [N] of a numeric tag, -1 where unknown (NaN or negative)."""
        # fp32 on both sides: 0.85 of a request and 0.85 of a telemetry column are one value.
        given = np.asarray(values, dtype=np.float32)
        edges = np.asarray(getattr(self, tag), dtype=np.float32)
        found = np.searchsorted(edges, given, side="left")
        return np.where(given >= 0.0, found, -1)

    def bucket(self, tag: str, value: object) -> str:
        """Bucket of one raw value; numbers may come as text, as in a query.

        Raises:
            ConfigurationError: an unknown tag, or a value that is not of its kind.
        """
        if tag not in TAGS:
            raise ConfigurationError(f"segment.{tag}", value, f"tags are {TAGS}")
        if tag not in NUMERIC_TAGS:
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"segment.{tag}", value, "give a text")
            return value
        try:
            is_number = isinstance(value, int | float | str | np.number)
            number = float(value) if is_number and not isinstance(value, bool) else float("nan")  # type: ignore[arg-type]
        except (ValueError, OverflowError):
            number = float("nan")
        if not 0.0 <= number < float("inf"):
            raise ConfigurationError(f"segment.{tag}", value, "give a finite number >= 0")
        return self.labels(tag)[int(self.numbers(tag, np.array([number]))[0])]

    def key(self, tags: Mapping[str, object]) -> SegmentKey:
        """The segment of raw tags; None stands for an unknown value.

        Raises:
            ConfigurationError: as :meth:`bucket`.
        """
        known = {tag: value for tag, value in tags.items() if value is not None}
        return SegmentKey.of({tag: self.bucket(tag, value) for tag, value in known.items()})

    def to_dict(self) -> dict[str, list[float]]:
        """Edges by tag."""
        return {tag: list(getattr(self, tag)) for tag in NUMERIC_TAGS}


@dataclass(frozen=True, slots=True)
class SegmentLevels:
    """Which sets of tags are told apart, from coarse to fine.

    Attributes:
        levels: sets of tags, each once; a set comes after its subsets.

    Raises:
        ConfigurationError: levels that are empty, unknown, repeated or out of order.

    Examples:
        >>> levels = SegmentLevels((("domain",), ("domain", "context_length")))
        >>> levels.parent(SegmentKey.of({"domain": "code", "context_length": "0-512"})).to_dict()
        {'domain': 'code'}
    """

    levels: tuple[tuple[str, ...], ...] = field(default=DEFAULT_LEVELS)

    def __post_init__(self) -> None:
        sets: list[frozenset[str]] = []
        ordered = []
        for level in self.levels:
            tags = frozenset(level)
            if not tags or tags - set(TAGS) or len(tags) != len(level):
                raise ConfigurationError("levels", level, f"give one or more tags of {TAGS}, once")
            if any(tags <= earlier for earlier in sets):
                raise ConfigurationError("levels", level, "list each set once, after its subsets")
            sets.append(tags)
            ordered.append(tuple(tag for tag in TAGS if tag in tags))
        object.__setattr__(self, "levels", tuple(ordered))

    @property
    def tags(self) -> tuple[str, ...]:
        """Every tag that some level uses, in the order of :data:`TAGS`."""
        used = {tag for level in self.levels for tag in level}
        return tuple(tag for tag in TAGS if tag in used)

    def parent(self, key: SegmentKey) -> SegmentKey:
        """The segment that ``key`` is pulled to; the pool is its own parent."""
        own = set(key.tags)
        for level in reversed(self.levels):
            if set(level) < own:
                return key.restricted(level) or POOL
        return POOL

    def candidates(self, key: SegmentKey) -> tuple[SegmentKey, ...]:
        """Segments that may serve a request, finest level first, the pool last."""
        restricted = (key.restricted(level) for level in reversed(self.levels))
        return (*(found for found in restricted if found is not None), POOL)

    def to_list(self) -> list[list[str]]:
        """The levels as plain JSON."""
        return [list(level) for level in self.levels]


def segment_name(tags: Mapping[str, object]) -> str:
    """A segment in one line, wherever people or programs read its name; empty for all traffic.

    Examples:
        >>> segment_name({"sampling_temperature": "0.5-0.85", "domain": "code"})
        'domain=code, sampling_temperature=0.5-0.85'
    """
    return ", ".join(f"{tag}={value}" for tag, value in sorted(tags.items()))


def leaf_segments(
    records: AcceptanceRecords,
    buckets: SegmentBuckets,
    tags: Iterable[str],
) -> tuple[NDArray[np.intp], tuple[SegmentKey, ...]]:
    """Segment of every row by all the given tags; a tag that a row does not know is left out.

    Returns:
        Codes [N] into the tuple of segments, which is sorted and holds only what occurs.
    """
    columns: list[NDArray[np.intp]] = []
    names: list[tuple[str, ...]] = []
    chosen = [tag for tag in TAGS if tag in set(tags)]
    for tag in chosen:
        values = getattr(records, tag)
        if values is None:
            columns.append(np.full(len(records), -1, dtype=np.intp))
            names.append(())
        elif tag in NUMERIC_TAGS:
            columns.append(buckets.numbers(tag, values))
            names.append(buckets.labels(tag))
        else:
            codes, labels = _text_codes(values)
            columns.append(codes)
            names.append(labels)
    if not columns or not len(records):
        return np.zeros(len(records), dtype=np.intp), (POOL,) if len(records) else ()
    inverse, width = np.zeros(len(records), dtype=np.intp), 1
    for codes, labels in zip(columns, names, strict=True):
        inverse = inverse * (len(labels) + 1) + codes + 1
        width *= len(labels) + 1
        inverse, width = _dense(inverse, width)
    member = np.empty(width, dtype=np.intp)  # any row of each segment
    member[inverse] = np.arange(len(records))
    keys = [
        SegmentKey(
            tuple(
                (tag, labels[code])
                for tag, labels, code in zip(chosen, names, row, strict=True)
                if code >= 0
            )
        )
        for row in np.stack([column[member] for column in columns], axis=1).tolist()
    ]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    rank = np.empty(len(keys), dtype=np.intp)
    rank[order] = np.arange(len(keys))
    return rank[inverse], tuple(keys[index] for index in order)


def _dense(codes: NDArray[np.intp], width: int) -> tuple[NDArray[np.intp], int]:
    """Codes [N] below ``width`` without gaps, in the same order, and how many are used."""
    if width > 4 * len(codes) + 1024:
        used, dense = np.unique(codes, return_inverse=True)
        return dense.ravel(), len(used)
    present = np.bincount(codes, minlength=width) > 0
    numbers = np.cumsum(present) - 1
    return numbers[codes], int(numbers[-1]) + 1


def _text_codes(values: NDArray[np.object_]) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    listed = values.tolist()
    names = [name for name in dict.fromkeys(listed) if name is not None]
    known: dict[str | None, int] = {name: code for code, name in enumerate(names)}
    known[None] = -1
    return np.fromiter(map(known.__getitem__, listed), np.intp, len(listed)), tuple(names)
