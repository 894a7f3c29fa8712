"""What a fold decided, as values: whoever runs the loop carries them out, or only tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

__all__ = [
    "Alarm",
    "Decision",
    "Hold",
    "Promote",
    "Refuse",
    "Resolve",
    "RollBack",
    "ScheduleFit",
    "decision_dict",
]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A level was entered; each level at most once per baseline.

    Attributes:
        level: ``warn`` or ``act``.
        detector: name of the detector.
        quantity: ``conditional`` or ``survival``.
        position: position that the leading alternative names, from 1; None for all.
        segment: tags of the segment that stands out; None for all traffic.
        leading: the leading alternative in words.
        evidence_log10: decimal logarithm of the evidence.
        threshold_log10: decimal logarithm of the threshold.
        row: row of the stream after which the alarm was raised, from 0.
        change_row: row of the stream with which the change began, by estimate.
        rows_ago: rows from there to the newest row.
        from_batch: first stored batch of the change.
        since: seconds since the epoch when that batch was folded; None where unknown.
    """

    level: Literal["warn", "act"]
    detector: str
    quantity: Literal["conditional", "survival"]
    position: int | None
    segment: Mapping[str, str] | None
    leading: str
    evidence_log10: float
    threshold_log10: float
    row: int
    change_row: int
    rows_ago: int
    from_batch: int
    since: float | None


@dataclass(frozen=True, slots=True)
class Hold:
    """Telemetry cannot be trusted: nothing is fitted or promoted until it is resolved.

    Attributes:
        monitor: the data-quality monitor.
        reason: the numbers in words.
        dedup_key: of its event, without the drafter.
    """

    monitor: str
    reason: str
    dedup_key: str


@dataclass(frozen=True, slots=True)
class ScheduleFit:
    """A refit is due.

    Attributes:
        reason: ``act alarm``, ``warn alarm`` or ``schedule``, with numbers.
        cause: the first of these words alone.
        window_from: first stored batch of the window; None for the newest rows.
        through: last stored batch of the window.
        rows: usable rows from there on.
        segmented: whether only numbers by segment can mend it: one segment alone stands out.
    """

    reason: str
    cause: Literal["act", "warn", "schedule"]
    window_from: int | None
    through: int
    rows: int
    segmented: bool = False


@dataclass(frozen=True, slots=True)
class Promote:
    """The gate lets the challenger through.

    Attributes:
        challenger: number of the revision.
        reason: the evidence in words.
        evidence: the gate's decision as plain JSON.
    """

    challenger: int
    reason: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refuse:
    """The gate gave the challenger up.

    Attributes:
        challenger: number of the revision.
        refusal: word of :class:`calib.statuses.Refusal`.
        reason: why, in words.
        evidence: the gate's decision as plain JSON.
    """

    challenger: int
    refusal: str
    reason: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RollBack:
    """The previous revision is better after all.

    Attributes:
        champion: revision to take away.
        previous: revision to serve again.
        reason: why, in words.
        evidence: evidence of the watch as plain JSON.
    """

    champion: int
    previous: int
    reason: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Resolve:
    """The cause of an event is gone.

    Attributes:
        dedup_key: of the event, without the drafter: ``drift`` or ``data_quality/<monitor>``.
        reason: what settled it, in words.
    """

    dedup_key: str
    reason: str


Decision = Alarm | Hold | ScheduleFit | Promote | Refuse | RollBack | Resolve


def decision_dict(decision: Decision) -> dict[str, Any]:
    """Plain JSON values, with the kind of the decision."""
    values = {entry.name: getattr(decision, entry.name) for entry in fields(decision)}
    kind = type(decision).__name__
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind)
    return {"kind": words.removeprefix("_"), **values}
