"""What a detector says about a stream: immutable, and complete enough to explain itself.

A verdict never resets by being read. Once raised, an alarm stays in force, and in every later
verdict, until the stream is re-baselined with a fresh state; ``raised`` is true in exactly one
verdict of a stream. So one change makes one event, however often the stream is updated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from calib.errors import FormatError

_LARGEST_LOG = 700.0  # exp stays a finite double


class VerdictStatus(StrEnum):
    """State of one stream under one detector."""

    INSUFFICIENT = "insufficient"  # fewer rows than the stated minimum: no claim either way
    QUIET = "quiet"
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Where the change behind the present evidence began.

    Attributes:
        row: first row of the run of the alternative that holds most of the evidence. Refit on
            rows from here on.
        earliest: smallest start among the alternatives that together hold 95 % of the evidence.
        latest: largest such start. The two show how far the alternatives disagree; they are no
            confidence interval.
    """

    row: int
    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """The moment a detector's evidence reached its threshold.

    Attributes:
        row: the row, counted from 0 in the monitored stream, after which the alarm was raised:
            the last row of its block (see :mod:`monitoring.detectors.e_cusum`).
        change_point: estimate of where the change began.
        leading: the alternative with most of the evidence, in words.
        log_evidence: natural logarithm of the evidence at that row.
    """

    row: int
    change_point: ChangePoint
    leading: str
    log_evidence: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The alarm that :meth:`to_dict` described.

        Raises:
            FormatError: missing or unknown fields.
        """
        try:
            point = ChangePoint(**values["change_point"])
            return cls(**{**values, "change_point": point})
        except (KeyError, TypeError) as error:
            raise FormatError("alarm", f"{error}", "write it with to_dict()") from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """One detector's view of its stream after an update.

    Attributes:
        detector: name of the detector.
        status: see :class:`VerdictStatus`.
        rows: rows seen since the stream began.
        log_evidence: natural logarithm of the evidence at the last complete block.
        log_threshold: evidence at which an alarm is raised, ln A.
        leading: the alternative with most of the evidence, in words.
        alarm: the alarm in force, or None.
        raised: whether this very update raised it.
    """

    detector: str
    status: VerdictStatus
    rows: int
    log_evidence: float
    log_threshold: float
    leading: str
    alarm: Alarm | None
    raised: bool

    @property
    def evidence(self) -> float:
        """The evidence itself, at most e^700 so that it is always a finite number."""
        return math.exp(min(self.log_evidence, _LARGEST_LOG))

    @property
    def reason(self) -> str:
        """The verdict in one sentence."""
        if self.alarm is not None:
            point = self.alarm.change_point
            return (
                f"{self.detector}: alarm at row {self.alarm.row}, change near row {point.row}"
                f" ({self.alarm.leading})"
            )
        if self.status is VerdictStatus.INSUFFICIENT:
            return f"{self.detector}: {self.rows} rows are too few to judge"
        share = 100.0 * max(self.log_evidence, 0.0) / self.log_threshold
        return f"{self.detector}: quiet after {self.rows} rows, {share:.0f} % of the way (log)"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, no NaN and no infinity."""
        return asdict(self) | {"status": str(self.status), "reason": self.reason}
