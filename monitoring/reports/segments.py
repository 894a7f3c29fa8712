"""Slices of telemetry by tags that are known before verification.

Only such tags may split rows: given a verified length, an outcome or a later logit, the labels of
even a perfect model are off.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords
from calib.segment_tags import SegmentBuckets, segment_name

__all__ = ["UNKNOWN", "SegmentRows", "segment_rows"]

UNKNOWN = "unknown"
OTHER = "other"

# A table longer than this is not read; the rarest values share one line.
MAXIMUM_VALUES = 12

_BUCKETS = SegmentBuckets()


@dataclass(frozen=True, slots=True, eq=False)
class SegmentRows:
    """One slice.

    Attributes:
        tags: (column, value) pairs, one or two.
        rows: row numbers, ascending.
    """

    tags: tuple[tuple[str, str], ...]
    rows: NDArray[np.intp]

    @property
    def name(self) -> str:
        """Tags in words, as in ``domain=math, sampling_temperature=0.5-0.85``."""
        return segment_name(dict(self.tags))


def segment_rows(records: AcceptanceRecords) -> list[SegmentRows]:
    """Slices by domain, by sampling temperature, and by both; those without rows are left out.

    A column that was not sent, or has one value only, makes no slices. Unknown cells are a value
    of their own, :data:`UNKNOWN`.
    """
    by_column = [
        ("domain", _domains(records)),
        ("sampling_temperature", _sampling_temperatures(records)),
    ]
    columns = [(name, values) for name, values in by_column if len(set(values)) > 1]
    segments = [
        SegmentRows(((name, value),), np.flatnonzero(values == value))
        for name, values in columns
        for value in _ordered(values)
    ]
    if len(columns) == 2:
        (first, firsts), (second, seconds) = columns
        for outer in _ordered(firsts):
            for inner in _ordered(seconds):
                rows = np.flatnonzero((firsts == outer) & (seconds == inner))
                if len(rows):
                    segments.append(SegmentRows(((first, outer), (second, inner)), rows))
    return segments


def _domains(records: AcceptanceRecords) -> NDArray[np.object_]:
    if records.domain is None:
        return np.zeros(0, dtype=object)
    return _limited(np.array([value or UNKNOWN for value in records.domain], dtype=object))


def _sampling_temperatures(records: AcceptanceRecords) -> NDArray[np.object_]:
    """Buckets of the loop and of served segments: a slice has one name everywhere."""
    if records.sampling_temperature is None:
        return np.zeros(0, dtype=object)
    labels = np.array([*_BUCKETS.labels("sampling_temperature"), UNKNOWN], dtype=object)
    found = labels[_BUCKETS.numbers("sampling_temperature", records.sampling_temperature)]
    return np.asarray(found, dtype=object)


def _limited(values: NDArray[np.object_]) -> NDArray[np.object_]:
    """The values, the rarest of too many replaced by :data:`OTHER`."""
    counts = Counter(values.tolist())
    if len(counts) <= MAXIMUM_VALUES:
        return values
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    kept = set(ranked[: MAXIMUM_VALUES - 1])
    return np.array([value if value in kept else OTHER for value in values], dtype=object)


def _ordered(values: NDArray[np.object_]) -> list[str]:
    """Distinct values: numbers and buckets by size, texts by alphabet, "other", "unknown" last."""
    order = {label: index for index, label in enumerate(_BUCKETS.labels("sampling_temperature"))}

    def key(value: str) -> tuple[int, int, str]:
        return int(value in (OTHER, UNKNOWN)), order.get(value, 0), value

    return sorted(set(values.tolist()), key=key)
