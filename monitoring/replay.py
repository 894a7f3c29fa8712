"""Recorded telemetry through the whole closed loop, in memory and faster than real time.

The very fold of the service (:mod:`monitoring.drift_monitor`), the very fit of its recalibration
job (:mod:`monitoring.challenger_fit`); what differs is that decisions are carried out here, between
two batches, instead of in a database. Time is the recording's own at a stated number of rows a
second.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from calib.segment_tags import segment_name
from monitoring.challenger_fit import ChallengerFit, Champion, fit_challenger
from monitoring.drift_monitor import FoldResult, fold
from monitoring.loop_decisions import (
    Alarm,
    Decision,
    Promote,
    Refuse,
    RollBack,
    ScheduleFit,
    decision_dict,
)
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, start_monitor
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.refit_schedule import fit_ended
from monitoring.served_numbers import ServedNumbers
from monitoring.store.revisions import Revision

__all__ = ["Happening", "Replay", "ReplayOptions", "ReplayResult", "Stretch"]

BATCH_ROWS: Final = 256
_ROWS_A_SECOND: Final = 1000.0
_START: Final = 1.0e9  # any instant


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of rows that belong together: one phase of a shift.

    Attributes:
        name: in words.
        first: its first row.
        rows: how many.
        announced: whether a new calibration key begins here: a new baseline at identity.
    """

    name: str
    first: int
    rows: int
    announced: bool = False


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a replay goes about it.

    Attributes:
        batch_rows: rows of a fold.
        rows_a_second: of the virtual clock.
        baseline_rows: rows to fit a first champion on, promoted by hand and not watched; 0 starts
            at identity.
    """

    batch_rows: int = BATCH_ROWS
    rows_a_second: float = _ROWS_A_SECOND
    baseline_rows: int = 0


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened.

    Attributes:
        row: rows replayed by then.
        stretch: phase it fell into.
        kind: ``alarm``, ``fit``, ``promote`` …
        text: in one line.
        details: plain JSON.
    """

    row: int
    stretch: str
    kind: str
    text: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "row": self.row,
            "stretch": self.stretch,
            "kind": self.kind,
            "text": self.text,
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True, eq=False)
class ReplayResult:
    """What a replay came to.

    Attributes:
        rows: rows replayed.
        stretches: phases.
        happenings: in order.
        champions: revision that was served from which row on.
        revisions: by number.
        state: of the loop at the end.
        seconds: that the replay took.
        fold_seconds: CPU seconds of the folds alone.
    """

    rows: int
    stretches: tuple[Stretch, ...]
    happenings: tuple[Happening, ...]
    champions: tuple[tuple[int, int], ...]
    revisions: Mapping[int, Revision]
    state: MonitorState
    seconds: float
    fold_seconds: float


class Replay:
    """One replay.

    Args:
        records: all rows in the order of the stream.
        stretches: phases that cover them; one of all rows when None.
        settings: of the loop; defaults when None.
        options: of the replay; defaults when None.
        drafter: name to show.
    """

    def __init__(
        self,
        records: AcceptanceRecords,
        stretches: Sequence[Stretch] | None = None,
        *,
        settings: LoopSettings | None = None,
        options: ReplayOptions | None = None,
        drafter: str = "replay",
    ) -> None:
        self._records = records
        self._stretches = tuple(stretches or (Stretch("all", 0, len(records)),))
        self._settings = settings or LoopSettings()
        self._options = options or ReplayOptions()
        self._drafter = drafter
        self._happenings: list[Happening] = []
        self._champions: list[tuple[int, int]] = []
        self._revisions: dict[int, Revision] = {}
        self._served = 0
        self._challenger: int | None = None
        self._previous: int | None = None
        self._baseline_first = 0
        self._now = _START
        self._row = 0
        self._fold_seconds = 0.0
        self._state = self._fresh()

    def run(self) -> ReplayResult:
        """Replay everything."""
        began = time.perf_counter()
        self._new_baseline()
        for stretch in self._stretches:
            self._play(stretch)
        return ReplayResult(
            rows=self._row,
            stretches=self._stretches,
            happenings=tuple(self._happenings),
            champions=tuple(self._champions),
            revisions=dict(self._revisions),
            state=self._state,
            seconds=time.perf_counter() - began,
            fold_seconds=self._fold_seconds,
        )

    def _play(self, stretch: Stretch) -> None:
        if stretch.announced:
            self._new_baseline()
            self._tell("key", "a new calibration key: a new baseline at identity")
        elif stretch.first:
            self._tell("stretch", f"{stretch.name} begins")
        first = stretch.first
        if self._options.baseline_rows and (stretch.announced or not stretch.first):
            first = min(first + self._options.baseline_rows, stretch.first + stretch.rows)
            self._fit_baseline(stretch.first, first)
        for start, last in self._batches(first, stretch.first + stretch.rows):
            self._step(self._records.select(slice(start, last)), last)

    def _batches(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        for start in range(first, end, self._options.batch_rows):
            yield start, min(start + self._options.batch_rows, end)

    def _step(self, batch: AcceptanceRecords, last: int) -> None:
        self._row = last
        self._now += len(batch) / self._options.rows_a_second
        began = time.process_time()
        found = fold(
            self._state,
            batch,
            champion=self._revisions[self._served],
            challenger=None if self._challenger is None else self._revisions[self._challenger],
            previous=None if self._previous is None else self._revisions[self._previous],
            now=self._now,
            settings=self._settings,
            ingested=last,
        )
        self._fold_seconds += time.process_time() - began
        self._state = found.state
        self._carry_out(found)

    def _carry_out(self, found: FoldResult) -> None:
        for decision in found.decisions:
            self._tell_decision(decision)
            if not self._settings.automatic:
                continue
            if isinstance(decision, ScheduleFit):
                self._fit(decision)
            elif isinstance(decision, Promote):
                self._serve(decision.challenger)
            elif isinstance(decision, RollBack):
                self._serve(decision.previous)
            elif isinstance(decision, Refuse):
                self._challenger = None

    def _fit(self, asked: ScheduleFit) -> None:
        first = (
            0 if asked.window_from is None else max(asked.window_from - self._options.batch_rows, 0)
        )
        rows = self._records.select(slice(max(first, self._baseline_first), self._row))
        found = self._fitted(rows, segmented=asked.segmented)
        details = {"rows": len(rows), "method": found.method, "summary": list(found.summary)}
        if found.refusal is not None or found.calibration is None:
            self._state = fit_ended(self._state)
            self._tell("fit_refused", f"{found.refusal}: {found.reason}", details)
            return
        number = self._add(found, len(rows), "loop")
        self._challenger = number
        self._tell(
            "challenger", f"revision {number} by {found.method} on {len(rows)} rows", details
        )

    def _fitted(self, rows: AcceptanceRecords, *, segmented: bool = False) -> ChallengerFit:
        settings = self._settings
        served = ServedNumbers.of(self._revisions[self._served])
        options = RecalibrationOptions(
            method="segments" if segmented else settings.method_for(len(rows)),
            minimum_rows=settings.fit_position_rows,
            evaluation_share=settings.fit_judged_share,
        )
        return fit_challenger(rows, options, champion=Champion(self._served, served))

    def _add(self, found: ChallengerFit, rows: int, by: str) -> int:
        number = max(self._revisions) + 1
        if found.calibration is None:  # pragma: no cover - callers look first
            return number
        self._revisions[number] = Revision(
            drafter=self._drafter,
            number=number,
            calibration=found.calibration,
            segments=found.segments,
            provenance={"model": found.model, "window": {"last_batch": self._row, "rows": rows}},
            created_at=self._now,
            created_by=by,
        )
        return number

    def _fit_baseline(self, first: int, last: int) -> None:
        """A first champion by hand; its rows are not watched."""
        self._row = last
        self._now += (last - first) / self._options.rows_a_second
        rows = self._records.select(slice(first, last))
        found = self._fitted(rows)
        if found.calibration is None:
            words = f"no first champion, identity stays: {found.refusal}: {found.reason}"
            self._tell("baseline", words)
            return
        number = self._add(found, len(rows), "hand")
        words = f"revision {number} by {found.method} on {len(rows)} rows, promoted by hand"
        self._tell("baseline", words)
        self._serve(number)
        self._previous = None  # the first champion replaces nothing that anybody trusted

    def _serve(self, number: int) -> None:
        self._previous, self._served = self._served, number
        self._challenger = None
        self._champions.append((self._row, number))

    def _new_baseline(self) -> None:
        number = max(self._revisions, default=-1) + 1
        identity = Calibration.identity(self._records.gamma)
        self._revisions[number] = Revision(
            self._drafter, number, identity, None, {"origin": "registration"}, self._now, "replay"
        )
        self._served, self._previous, self._challenger = number, None, None
        self._baseline_first = self._row
        self._champions.append((self._row, number))
        self._state = self._fresh()

    def _fresh(self) -> MonitorState:
        return start_monitor(
            self._drafter,
            self._records.gamma,
            now=self._now,
            window_rows=self._settings.window_rows,
        )

    def _tell_decision(self, decision: Decision) -> None:
        details = decision_dict(decision)
        kind = details.pop("kind")
        text = decision.leading if isinstance(decision, Alarm) else decision.reason
        if isinstance(decision, Alarm):
            where = "" if decision.segment is None else f" in {segment_name(decision.segment)}"
            text = (
                f"{decision.level}: {decision.quantity}{where}, {text}; evidence 10^"
                f"{decision.evidence_log10:.1f}, change {decision.rows_ago} rows ago"
            )
        self._tell(kind, text, details)

    def _tell(self, kind: str, text: str, details: Mapping[str, Any] | None = None) -> None:
        name = self._stretches[0].name
        for stretch in self._stretches:
            if stretch.first < self._row or self._row == 0:
                name = stretch.name
                if self._row == 0:
                    break
        self._happenings.append(Happening(self._row, name, kind, text, details or {}))
