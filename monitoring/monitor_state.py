"""What the loop remembers of a drafter between folds: immutable, bounded, versioned.

:mod:`monitoring.monitor_state_bytes` stores it; a stored state goes on with the same decisions as
one that never left memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from monitoring.calibration_history import ErrorSums, HistoryPoint
from monitoring.data_quality_monitors import QualityState, QualityVerdict
from monitoring.detectors.e_cusum import CusumState
from monitoring.detectors.levels import DriftState
from monitoring.explanations import TrafficSummary
from monitoring.hour_sketches import HourSketches
from monitoring.monitor_deduplication import RecentRows
from monitoring.promotion_gate import GateState
from monitoring.promotion_gate_rollback import RollbackState
from monitoring.request_dependence import RequestDependence
from monitoring.residual_means import ResidualMeans

__all__ = [
    "MOST_MARKS",
    "MonitorState",
    "PendingFit",
    "SegmentStream",
    "StreamMarks",
    "Trial",
    "Watch",
    "start_monitor",
]

MOST_MARKS: Final = 256


@dataclass(frozen=True, slots=True)
class StreamMarks:
    """Which stored batch a row of a stream came from: thinned as the stream grows.

    Attributes:
        rows: rows of the stream before each marked batch, ascending.
        batches: first batch of each mark.
        times: seconds since the epoch when it was folded.
    """

    rows: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    times: tuple[float, ...] = ()

    def add(self, rows: int, batch: int, now: float) -> StreamMarks:
        """With one more mark; every other one of the older half goes when there are too many."""
        places, batches, times = (*self.rows, rows), (*self.batches, batch), (*self.times, now)
        if len(places) > MOST_MARKS:
            half = MOST_MARKS // 2
            places = places[:half:2] + places[half:]
            batches = batches[:half:2] + batches[half:]
            times = times[:half:2] + times[half:]
        return StreamMarks(places, batches, times)

    def at(self, row: int) -> tuple[int, float] | None:
        """Batch and time of the first mark at or after the row; the last one beyond all.

        Rounding up leaves rows before a change out of its window.
        """
        for rows, batch, time in zip(self.rows, self.batches, self.times, strict=True):
            if rows >= row:
                return batch, time
        return (self.batches[-1], self.times[-1]) if self.batches else None


@dataclass(frozen=True, slots=True, eq=False)
class SegmentStream:
    """One segment's own detector.

    Attributes:
        tags: buckets by tag; empty for the segments that came later than the others.
        state: of the act level's likelihood ratio.
        marks: of its own rows.
    """

    tags: Mapping[str, str]
    state: CusumState
    marks: StreamMarks


@dataclass(frozen=True, slots=True)
class PendingFit:
    """A fit that was asked for and has not been answered.

    Attributes:
        cause: ``act``, ``warn`` or ``schedule``.
        at_row: row of the baseline at which it was asked for.
        ticket: id of the job, where one was made.
    """

    cause: str
    at_row: int
    ticket: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A challenger beside the champion.

    Attributes:
        revision: number of the challenger.
        fitted_through: newest stored batch its fit may have seen.
        ordinal: how many challengers met this champion, it included.
        gate: evidence so far.
        status: ``collecting``, ``promoted`` or ``refused``.
        reason: why it stands there; None while it collects.
        bounded: whether its change was found to lie within bounds.
        asked_row: row of the baseline at which its fit was asked for.
    """

    revision: int
    fitted_through: int
    ordinal: int
    gate: GateState
    status: str = "collecting"
    reason: str | None = None
    bounded: bool = False
    asked_row: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """A promotion under watch.

    Attributes:
        revision: number of the new champion.
        previous: number of the one it replaced.
        promoted_at: newest stored batch at the promotion.
        state: evidence that ``previous`` is better.
        done: whether a decision was made.
    """

    revision: int
    previous: int
    promoted_at: int
    state: RollbackState
    done: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MonitorState:
    """Everything about one drafter's loop. Counts are rows unless they say otherwise.

    Attributes:
        drafter: name.
        gamma: γ.
        champion: revision that is watched; -1 before the first fold.
        digest: of that revision's numbers.
        publication: number of the publication that serves it.
        consumed_through: newest stored batch that was folded.
        quality: data-quality monitors.
        recent: recent row keys.
        rows: usable rows since the champion was published.
        rows_total: usable rows ever.
        duplicates: rows that came before.
        late: rows too old to tell.
        held: usable rows that came while telemetry could not be trusted.
        rejected: rows that validation refused, as its counter stood at the newest fold.
        excluded: rows left out, by reason.
        drift: detectors of all traffic; None before the first fold.
        segments: detectors by segment name.
        marks: batches of the pooled stream.
        announced: alarms that were told: ``warn``, ``act``, and ``segment:<name>`` of each segment.
        act_row: row at which the change behind the newest acting alarm began, and its batch.
        consistency: by position, evidence that soft labels contradict acceptance.
        verdicts: of the data-quality monitors, by the newest fold.
        trial: challenger under test, or the last one that was.
        challengers: how many met this champion.
        watch: of the last promotion.
        fit: a fit that is asked for.
        fits: fits asked for since the champion was published.
        last_fit_row: row of the baseline at which the last fit ended.
        last_fit_at: seconds since the epoch when it was asked for.
        cool_down_rows: rows of the cool-down that remain.
        reference: traffic that explanations compare with.
        current: newest traffic, in halves, oldest first.
        residuals: outcome less confidence, lately.
        dependence: of the rows of one request.
        errors: calibration error since the last point of the history.
        history: points, oldest first.
        sketches: by hour, what a refit reads.
        last_decision: kind, time and reason of the last decision worth showing.
        started_at: seconds since the epoch of the first fold.
        updated_at: seconds since the epoch of the newest fold.
        baseline_at: seconds since the epoch when the champion was first seen.
    """

    drafter: str
    gamma: int
    quality: QualityState
    recent: RecentRows
    champion: int = -1
    digest: str = ""
    publication: int = 0
    consumed_through: int = 0
    rows: int = 0
    rows_total: int = 0
    duplicates: int = 0
    late: int = 0
    held: int = 0
    rejected: int = 0
    excluded: Mapping[str, int] = field(default_factory=dict)
    drift: DriftState | None = None
    segments: Mapping[str, SegmentStream] = field(default_factory=dict)
    marks: StreamMarks = field(default_factory=StreamMarks)
    announced: tuple[str, ...] = ()
    act_row: tuple[int, int] | None = None
    consistency: tuple[float, ...] = ()
    verdicts: tuple[QualityVerdict, ...] = ()
    trial: Trial | None = None
    challengers: int = 0
    watch: Watch | None = None
    fit: PendingFit | None = None
    fits: int = 0
    last_fit_row: int = 0
    last_fit_at: float = 0.0
    cool_down_rows: int = 0
    reference: TrafficSummary | None = None
    current: tuple[TrafficSummary, ...] = ()
    residuals: ResidualMeans = field(default_factory=ResidualMeans)
    dependence: RequestDependence = field(default_factory=RequestDependence)
    errors: ErrorSums | None = None
    history: tuple[HistoryPoint, ...] = ()
    sketches: HourSketches = field(default_factory=HourSketches)
    last_decision: tuple[str, float, str] | None = None
    started_at: float = 0.0
    updated_at: float = 0.0
    baseline_at: float = 0.0

    @property
    def warned(self) -> bool:
        """Whether any level of alarm was entered and is not over."""
        return bool(self.announced)

    @property
    def acting(self) -> bool:
        """Whether an alarm that acts is in force, of all traffic or of a segment."""
        return any(level != "warn" for level in self.announced)

    def __repr__(self) -> str:
        return (
            f"MonitorState(drafter={self.drafter!r}, champion={self.champion}, rows={self.rows}, "
            f"consumed_through={self.consumed_through})"
        )


def start_monitor(
    drafter: str, gamma: int, *, now: float, window_rows: int, consumed_through: int = 0
) -> MonitorState:
    """The state of a drafter of which no row was folded.

    Args:
        drafter: name.
        gamma: γ.
        now: seconds since the epoch.
        window_rows: row keys to remember.
        consumed_through: newest stored batch that is left out.
    """
    return MonitorState(
        drafter=drafter,
        gamma=gamma,
        quality=QualityState(started=now, accept_run=(0.0,) * gamma),
        recent=RecentRows(window_rows),
        consumed_through=consumed_through,
        started_at=now,
        updated_at=now,
        baseline_at=now,
    )
