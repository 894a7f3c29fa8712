"""What changed in the traffic: shown beside an alarm as explanation, never a trigger.

Confidence, acceptance and mix change with the traffic while calibration holds; alarming on them
would retrain on harmless change. So nothing here has a threshold or a verdict: differences are
measured, ranked by size and put into words.

A :class:`TrafficSummary` is additive, like all sums of this project: summaries of engines, hours
and shards add up exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.acceptance_summary import AcceptanceSummary
from calib.errors import FormatError, RecordError
from calib.records import AcceptanceRecords, Flag

CELLS = 64  # of the squashed logit u = z / (1 + |z| / 4) in (−4, 4)
TAGS = ("domain", "adapter", "acceptance_rule", "draft_mode", "engine")
UNKNOWN_TAG = "(unknown)"

_SMOOTHING = 0.5  # rows added to each cell, so that an empty one leaves the index finite


def population_stability_index(
    reference: ArrayLike,  # [cells] counts
    current: ArrayLike,  # [cells] counts
) -> float | None:
    """PSI = Σ (q − p)·ln(q / p) over cells that either side used; None when a side is empty.

    0 for equal shares. Half a row is added to every used cell. By custom .1 is called small and
    .25 large; with m cells and n rows a side, sampling alone gives about 2(m − 1)/n.

    Examples:
        >>> round(population_stability_index([500, 500], [500, 500]), 6)
        0.0
        >>> round(population_stability_index([700, 300], [300, 700]), 2)
        0.68
    """
    before, after = _counts(reference, current)
    if not before.sum() or not after.sum():
        return None
    used = (before + after) > 0
    p, q = before[used] + _SMOOTHING, after[used] + _SMOOTHING
    p, q = p / p.sum(), q / q.sum()
    return float(((q - p) * np.log(q / p)).sum())


def kolmogorov_smirnov(
    reference: ArrayLike,  # [cells] counts, in order
    current: ArrayLike,  # [cells] counts, in order
) -> float | None:
    """Largest difference of the two distribution functions at cell edges, in [0, 1].

    None when a side is empty. At most the distance of the unbinned samples.

    Examples:
        >>> kolmogorov_smirnov([2, 2, 0], [0, 2, 2])
        0.5
    """
    before, after = _counts(reference, current)
    if not before.sum() or not after.sum():
        return None
    distance = np.cumsum(before) / before.sum() - np.cumsum(after) / after.sum()
    return float(np.abs(distance).max())


@dataclass(frozen=True, eq=False, slots=True)
class TrafficSummary:
    """Additive counts of usable rows.

    Attributes:
        logit_counts: [γ, CELLS] rows by position and cell of the squashed logit.
        acceptance: acceptance and verified lengths.
        tags: rows by tag name and value.
    """

    logit_counts: NDArray[np.int64]
    acceptance: AcceptanceSummary
    tags: Mapping[str, Mapping[str, int]]

    @classmethod
    def from_records(cls, records: AcceptanceRecords) -> Self:
        """Counts over the usable rows."""
        usable = records.usable()
        rows = records if usable.all() else records.select(usable)
        logits = rows.confidence_logits.astype(np.float64)
        squashed = logits / (1.0 + np.abs(logits) / 4.0)
        cell = np.clip(((squashed + 4.0) * (CELLS / 8.0)).astype(np.int64), 0, CELLS - 1)
        cell += np.arange(rows.gamma) * CELLS
        stopped = (rows.flags & np.uint8(Flag.STOP_TRUNCATED)) != 0
        counts = np.bincount(cell.ravel(), minlength=rows.gamma * CELLS)
        return cls(
            counts.reshape(rows.gamma, CELLS).astype(np.int64),
            AcceptanceSummary.from_lengths(rows.verified, rows.accepted, rows.gamma, stopped),
            {name: _tag_counts(rows, name) for name in TAGS if getattr(rows, name) is not None},
        )

    def __add__(self, other: TrafficSummary) -> TrafficSummary:
        tags: dict[str, dict[str, int]] = {}
        for mine in (self.tags, other.tags):
            for name, counts in mine.items():
                total = tags.setdefault(name, {})
                for value, rows in counts.items():
                    total[value] = total.get(value, 0) + rows
        acceptance = self.acceptance + other.acceptance  # refuses another γ
        return TrafficSummary(self.logit_counts + other.logit_counts, acceptance, tags)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`from_dict` restores the summary."""
        names = AcceptanceSummary.__slots__
        return {
            "logit_counts": self.logit_counts.tolist(),
            "acceptance": {name: getattr(self.acceptance, name) for name in names},
            "tags": {name: dict(counts) for name, counts in self.tags.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The summary that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            acceptance: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in values["acceptance"].items()
            }
            counts = np.array(values["logit_counts"], dtype=np.int64)
            return cls(counts, AcceptanceSummary(**acceptance), values["tags"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError("traffic summary", f"{error}", "write it with to_dict()") from error


@dataclass(frozen=True, slots=True)
class Change:
    """One measured difference.

    Attributes:
        what: quantity, such as ``confidence at position 3`` or ``mix of domain``.
        measure: ``psi``, ``ks`` or ``difference``.
        value: its size; for a difference with sign, current minus reference.
        sentence: the change in words.
    """

    what: str
    measure: str
    value: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that differs between two stretches of traffic, largest PSI first."""

    reference_rows: int
    current_rows: int
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "reference_rows": self.reference_rows,
            "current_rows": self.current_rows,
            "changes": [
                {name: getattr(change, name) for name in Change.__slots__}
                for change in self.changes
            ],
        }


def explain(reference: TrafficSummary, current: TrafficSummary) -> Explanation:
    """Compare two stretches of traffic of one γ; pairs without rows on a side are left out.

    Raises:
        RecordError: summaries of different γ.
    """
    before, after = reference.acceptance, current.acceptance
    if before.gamma != after.gamma:
        raise RecordError("gamma", (before.gamma, after.gamma), "compare rows of one gamma")
    shifts = [*_confidence(reference, current), *_mixes(reference, current)]
    shifts.sort(key=lambda change: (-change.value, change.what))
    return Explanation(before.rows, after.rows, (*shifts, *_lengths(before, after)))


def _confidence(reference: TrafficSummary, current: TrafficSummary) -> list[Change]:
    found = []
    pairs = zip(reference.logit_counts, current.logit_counts, strict=True)
    for k, (before, after) in enumerate(pairs, start=1):
        index = population_stability_index(before, after)
        distance = kolmogorov_smirnov(before, after)
        if index is None or distance is None:
            continue
        what = f"confidence at position {k}"
        words = f"{what}: PSI {index:.3f}, KS {distance:.3f}"
        found += [Change(what, "psi", index, words), Change(what, "ks", distance, words)]
    return found


def _mixes(reference: TrafficSummary, current: TrafficSummary) -> list[Change]:
    found = []
    for name in sorted(set(reference.tags) | set(current.tags)):
        before, after = reference.tags.get(name, {}), current.tags.get(name, {})
        values = sorted(set(before) | set(after))
        old = np.array([before.get(value, 0) for value in values], dtype=np.float64)
        new = np.array([after.get(value, 0) for value in values], dtype=np.float64)
        index = population_stability_index(old, new)
        if index is None:
            continue
        moved = new / new.sum() - old / old.sum()
        most = int(np.abs(moved).argmax())
        sentence = (
            f"mix of {name}: PSI {index:.3f}; {values[most]} went from"
            f" {old[most] / old.sum():.1%} to {new[most] / new.sum():.1%} of the rows"
        )
        found.append(Change(f"mix of {name}", "psi", index, sentence))
    return found


def _lengths(before: AcceptanceSummary, after: AcceptanceSummary) -> list[Change]:
    found = []
    if before.rows and after.rows:
        for what, total in (
            ("verified length", "verified_tokens"),
            ("accepted length without bonus", "accepted_tokens"),
        ):
            old = getattr(before, total) / before.rows
            new = getattr(after, total) / after.rows
            found.append(_difference(f"mean {what}", old, new))
    for old_rate, new_rate in zip(before.positions, after.positions, strict=True):
        if old_rate.conditional is None or new_rate.conditional is None:
            continue
        what = f"acceptance at position {old_rate.position}"
        found.append(_difference(what, old_rate.conditional, new_rate.conditional))
    return found


def _difference(what: str, old: float, new: float) -> Change:
    return Change(what, "difference", new - old, f"{what} went from {old:.3f} to {new:.3f}")


def _tag_counts(rows: AcceptanceRecords, name: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for value, number in Counter(getattr(rows, name).tolist()).items():
        text = UNKNOWN_TAG if value is None else str(value)
        counts[text] = counts.get(text, 0) + number
    return dict(sorted(counts.items()))


def _counts(
    reference: ArrayLike, current: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    before = np.asarray(reference, dtype=np.float64)
    after = np.asarray(current, dtype=np.float64)
    if before.ndim != 1 or before.shape != after.shape:
        raise RecordError("current", after.shape, f"give counts of shape {before.shape}")
    if (before < 0.0).any() or (after < 0.0).any():
        raise RecordError("counts", "below 0", "give counts of rows")
    return before, after
