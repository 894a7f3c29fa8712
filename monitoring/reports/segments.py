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

__all__ = ["UNKNOWN", "SegmentRows", "segment_rows"]

UNKNOWN = "unknown"
OTHER = "other"

# A table longer than this is not read; the rarest values share one line.
MAXIMUM_VALUES = 12
# Requests may each bring their own sampling temperature: beyond this many, round to tenths.
MAXIMUM_TEMPERATURES = 8


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
        """Tags in words, as in ``domain=math, sampling_temperature=0.6``."""
        return ", ".join(f"{column}={value}" for column, value in self.tags)


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
    if records.sampling_temperature is None:
        return np.zeros(0, dtype=object)
    values = records.sampling_temperature.astype(np.float64)
    many = len(np.unique(values[~np.isnan(values)])) > MAXIMUM_TEMPERATURES
    rounded = np.round(values, 1 if many else 4)
    texts = [UNKNOWN if np.isnan(value) else f"{value:g}" for value in rounded]
    return _limited(np.array(texts, dtype=object))


def _limited(values: NDArray[np.object_]) -> NDArray[np.object_]:
    """The values, the rarest of too many replaced by :data:`OTHER`."""
    counts = Counter(values.tolist())
    if len(counts) <= MAXIMUM_VALUES:
        return values
    ranked = sorted(counts, key=lambda value: (-counts[value], value))
    kept = set(ranked[: MAXIMUM_VALUES - 1])
    return np.array([value if value in kept else OTHER for value in values], dtype=object)


def _ordered(values: NDArray[np.object_]) -> list[str]:
    """Distinct values: numbers by size, texts by alphabet, "other" and "unknown" last."""

    def key(value: str) -> tuple[int, float, str]:
        if value in (OTHER, UNKNOWN):
            return 1, 0.0, value
        try:
            return 0, float(value), value
        except ValueError:
            return 0, 0.0, value

    return sorted(set(values.tolist()), key=key)
