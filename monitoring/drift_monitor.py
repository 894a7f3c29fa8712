"""The fold: one pure step of the closed loop, from a state and rows to a state and decisions.

It knows no database and no clock. Rows are scored from their raw logits under the current champion,
whatever revision made them; flagged and anticipating rows are counted and left out; rows that came
before are dropped. Detectors, data-quality monitors, the gate of the challenger and the watch over
the last promotion advance, and what they amount to comes back as values
(:mod:`monitoring.loop_decisions`).

The same rows in the same order give the same states and decisions, however often the state was
stored in between. Where a batch ends matters little: detectors do not depend on it, gates and holds
are judged at its end. Folds of some thousand rows are quick and lose nothing.

Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calib.label_consistency import LabelConsistency, check_label_consistency
from calib.records import AcceptanceRecords
from monitoring.calibration_history import ErrorSums, HistoryPoint, thinned
from monitoring.challenger_trial import Scored, advance_trial, advance_watch
from monitoring.data_quality_monitors import (
    DataQualityMonitors,
    QualityFault,
    recalibration_held_by,
)
from monitoring.detectors.observations import Observations
from monitoring.drift_streams import (
    OTHER,
    advance_streams,
    of_other_settings,
    pooled_detectors,
    segment_names,
)
from monitoring.explanations import TrafficSummary
from monitoring.loop_decisions import (
    Alarm,
    Decision,
    Hold,
    Promote,
    Resolve,
    RollBack,
    decision_dict,
)
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, StreamMarks, Watch
from monitoring.promotion_gate_rollback import RollbackWatch
from monitoring.refit_schedule import schedule_fit
from monitoring.request_dependence import RequestDependence
from monitoring.residual_means import ResidualMeans
from monitoring.revision_predictions import RevisionPredictions
from monitoring.store.revisions import Revision

__all__ = ["FoldResult", "evidence_log10", "fold"]

_LOG10: Final = 1.0 / float(np.log(10.0))
_SAMPLED_ROWS: Final = 1024  # of a fold, for explanations: shares need no more
_CONSISTENCY_CHANCE: Final = 1e-6  # per fold, that consistent labels begin a false alert
_POINTS: Final = 50  # of the history, over the first rows; each costs as much as thousands of rows
# No row says nothing against the rows before: what was learnt stays.
_HARMLESS: Final = {QualityFault.SILENCE}


@dataclass(frozen=True, slots=True, eq=False)
class FoldResult:
    """Result of one fold.

    Attributes:
        state: to store with the decisions.
        decisions: in the order in which they are to be carried out.
        counted: rows that entered.
        duplicates: rows that came before, or too late to be told apart.
        excluded: rows left out for their flags, or while telemetry could not be trusted.
    """

    state: MonitorState
    decisions: tuple[Decision, ...]
    counted: int
    duplicates: int
    excluded: int


@dataclass(frozen=True, slots=True, eq=False)
class _Arrival:
    """The rows of a fold."""

    fresh: AcceptanceRecords  # without duplicates
    conditional: NDArray[np.float32]  # [fresh, γ]
    usable: NDArray[np.bool_]  # [fresh]
    ingested: NDArray[np.int64]  # [fresh]
    duplicates: int
    newest: int  # stored batch, duplicates included


def fold(
    state: MonitorState,
    batch: AcceptanceRecords | None,
    *,
    champion: Revision,
    challenger: Revision | None = None,
    previous: Revision | None = None,
    now: float,
    settings: LoopSettings,
    ingested: ArrayLike | None = None,  # [N] stored batch of each row, ascending
    consumed_through: int | None = None,
    publication: int | None = None,
    rejected: int = 0,
    expected: bool = True,
    key_digest: str | None = None,
    batch_key: str | None = None,
    regret_increase: float | None = None,
) -> FoldResult:
    """The state and the decisions after a batch, or after a tick without one.

    Args:
        state: as :func:`monitoring.monitor_state.start_monitor` or an earlier fold gave it.
        batch: valid rows in the order in which they were stored; None for a tick.
        champion: what is served.
        challenger: what the alias points at; None for nothing.
        previous: what the champion replaced; without it promotions are not watched.
        now: seconds since the epoch.
        settings: of the loop; others than at the last fold begin a new baseline.
        ingested: stored batch of each row; the next number for all when None.
        consumed_through: newest stored batch behind this fold; the largest of ``ingested`` when
            None.
        publication: number of the publication that serves the champion.
        rejected: rows that validation refused since the last fold.
        expected: whether rows are due; false while engines have speculation off.
        key_digest: of the drafter's calibration key.
        batch_key: of the key that the batch names.
        regret_increase: replayed throughput regret of the challenger less the champion's, as a
            share of Θ, where it was measured.
    """
    decisions: list[Decision] = []
    state = _rebased(state, champion, now, settings, publication, previous, decisions)
    models = RevisionPredictions.of(champion)
    monitors = DataQualityMonitors(
        state.gamma, key_digest=key_digest, silence_seconds=settings.silence_seconds
    )
    foreign = batch is not None and batch.gamma != state.gamma
    arrival = None if batch is None or foreign else _arrived(state, batch, models, ingested)
    if arrival is not None:
        state = replace(state, recent=arrival[1])
    rows = arrival[0] if arrival is not None else None
    state, held = _quality(
        state,
        monitors,
        batch if foreign else None,
        rows,
        now,
        rejected,
        expected,
        batch_key,
        decisions,
    )
    through = consumed_through
    if through is None:
        through = max(state.consumed_through, 0 if rows is None else rows.newest)
    counted = excluded = 0
    scored = None
    if rows is not None:
        counted = int(np.count_nonzero(rows.usable))
        excluded = len(rows.fresh) - counted
        state = _counted(state, rows)
        if held - _HARMLESS:
            state = replace(state, held=state.held + counted)
            excluded, counted = excluded + counted, 0
        elif counted:
            scored = _scored(rows, models)
            state = _advanced(state, scored, rows, models, now, settings, decisions)
    state = replace(state, consumed_through=through, updated_at=now)
    free = settings.automatic and not held and state.cool_down_rows == 0
    if settings.automatic:
        state, more = advance_watch(state, scored, previous, settings=settings)
        decisions += more
    state, more = advance_trial(
        state,
        scored,
        champion,
        challenger,
        settings=settings,
        free=free and not _served(decisions),
        regret_increase=regret_increase,
    )
    decisions += more
    state, due = schedule_fit(
        state, settings=settings, free=free and not _served(decisions), now=now
    )
    decisions += [due] if due is not None else []
    state = _told(state, decisions, now)
    return FoldResult(
        state, tuple(decisions), counted, 0 if rows is None else rows.duplicates, excluded
    )


def _served(decisions: list[Decision]) -> bool:
    """Whether what is served changes: then nothing else about it is decided in this fold."""
    return any(isinstance(decision, Promote | RollBack) for decision in decisions)


def evidence_log10(
    state: MonitorState, standard_error: float | None, settings: LoopSettings
) -> float:
    """Largest evidence of the pooled detectors, decimal logarithm."""
    if state.drift is None:
        return 0.0
    levels = pooled_detectors(state.gamma, standard_error, settings)
    found = [
        levels.warn._cusum.log_evidence(state.drift.warn),
        levels.act._cusum.log_evidence(state.drift.act),
    ]
    if levels.survival is not None and state.drift.survival is not None:
        found.append(levels.survival._cusum.log_evidence(state.drift.survival))
    return max(found) * _LOG10


def _rebased(
    state: MonitorState,
    champion: Revision,
    now: float,
    settings: LoopSettings,
    publication: int | None,
    previous: Revision | None,
    decisions: list[Decision],
) -> MonitorState:
    """A fresh baseline where the champion changed; the world before it is another one."""
    if publication is not None:
        state = replace(state, publication=publication)
    if state.champion == champion.number:
        return state
    if state.announced:
        decisions.append(Resolve("drift", f"revision {champion.number} is served"))
    first = state.champion < 0
    back = state.watch is not None and champion.number == state.watch.previous
    watch = None
    replaced = previous is not None and previous.number == state.champion
    if not first and not back and replaced and previous is not None:
        rollback = RollbackWatch(state.gamma, promoted_at=0)
        watch = Watch(champion.number, previous.number, state.consumed_through, rollback.start())
    recent = state.current
    return replace(
        state,
        champion=champion.number,
        digest=champion.calibration.digest,
        rows=0,
        drift=None,
        segments={},
        marks=StreamMarks(),
        announced=(),
        act_row=None,
        trial=None,
        challengers=0,
        watch=watch,
        fit=None,
        fits=0,
        last_fit_row=0,
        cool_down_rows=settings.cool_down_rows if back else state.cool_down_rows,
        reference=_joined(recent) if recent else state.reference,
        current=(),
        residuals=ResidualMeans(),
        dependence=RequestDependence(),
        errors=None,
        baseline_at=now,
    )


def _arrived(
    state: MonitorState,
    batch: AcceptanceRecords,
    models: RevisionPredictions,
    ingested: ArrayLike | None,
) -> tuple[_Arrival, Any]:
    numbers = (
        np.full(len(batch), state.consumed_through + 1)
        if ingested is None
        else np.broadcast_to(np.asarray(ingested, dtype=np.int64), len(batch))
    )
    memory, freshness = state.recent.admit(batch)
    newest = int(numbers.max(initial=0))
    fresh, numbers = batch, numbers.astype(np.int64)
    if not freshness.fresh.all():
        fresh, numbers = batch.select(freshness.fresh), numbers[freshness.fresh]
    conditional = models.conditional(fresh)
    dropped = freshness.duplicates + freshness.late
    return _Arrival(fresh, conditional, fresh.usable(), numbers, dropped, newest), memory


def _counted(state: MonitorState, rows: _Arrival) -> MonitorState:
    excluded = dict(state.excluded)
    if not rows.usable.all():
        for reason, count in rows.fresh.exclusion_counts().items():
            if count:
                excluded[reason] = excluded.get(reason, 0) + count
    return replace(state, excluded=excluded, duplicates=state.duplicates + rows.duplicates)


def _quality(
    state: MonitorState,
    monitors: DataQualityMonitors,
    foreign: AcceptanceRecords | None,
    rows: _Arrival | None,
    now: float,
    rejected: int,
    expected: bool,
    batch_key: str | None,
    decisions: list[Decision],
) -> tuple[MonitorState, set[QualityFault]]:
    """Data-quality monitors; what they hold, and what of it is new or over."""
    records = foreign if rows is None else rows.fresh
    state, consistency = _consistency(state, rows)
    step = monitors.update(
        state.quality,
        records,
        now=now,
        rejected=rejected,
        expected=expected,
        conditional=None if rows is None else rows.conditional,
        key_digest=batch_key,
        consistency=consistency,
    )
    before, after = set(state.quality.alerts), set(step.state.alerts)
    reasons = {verdict.fault: verdict.reason for verdict in step.verdicts}
    for fault in QualityFault:
        key = f"data_quality/{fault}"
        if fault in after - before:
            decisions.append(Hold(str(fault), reasons[fault], key))
        if fault in before - after:
            decisions.append(Resolve(key, reasons[fault]))
    held = set(recalibration_held_by(step.verdicts))
    state = replace(state, quality=step.state, verdicts=step.verdicts)
    if (before - _HARMLESS) and not (after - _HARMLESS):
        # What was fed before the fault was noticed may be wrong as well.
        state = _restarted(state, "telemetry can be trusted again: a new baseline", decisions)
    return state, held


def _restarted(state: MonitorState, reason: str, decisions: list[Decision]) -> MonitorState:
    """Fresh detectors under the same champion."""
    if state.announced:
        decisions.append(Resolve("drift", reason))
    return replace(
        state,
        drift=None,
        segments={},
        marks=StreamMarks(),
        announced=(),
        act_row=None,
        residuals=ResidualMeans(),
    )


def _consistency(
    state: MonitorState, rows: _Arrival | None
) -> tuple[MonitorState, LabelConsistency | None]:
    """Soft labels against acceptance, over all folds: an e-CUSUM of the checks' e-values."""
    if rows is None or rows.fresh.soft_labels is None or not rows.usable.any():
        return state, None
    compared = rows.fresh if rows.usable.all() else rows.fresh.select(rows.usable)
    found = check_label_consistency(compared)
    before = state.consistency or (0.0,) * state.gamma
    limit = float(np.log(state.gamma / _CONSISTENCY_CHANCE))
    evidence = tuple(
        max(old, 0.0) + position.log_evidence
        for old, position in zip(before, found.positions, strict=True)
    )
    positions = tuple(
        replace(
            position,
            log_evidence=total,
            inconsistent=total >= limit or position.impossible >= max(3, 0.01 * position.rows),
        )
        for position, total in zip(found.positions, evidence, strict=True)
    )
    judged = replace(found, positions=positions, log_threshold=limit)
    return replace(state, consistency=evidence), judged


def _scored(rows: _Arrival, models: RevisionPredictions) -> Scored:
    if rows.usable.all():
        records, conditional, ingested = rows.fresh, rows.conditional, rows.ingested
    else:
        records = rows.fresh.select(rows.usable)
        conditional, ingested = rows.conditional[rows.usable], rows.ingested[rows.usable]
    codes, names = segment_names(records)
    served = models.served_survival(records)
    return Scored(records, ingested, conditional, served, codes, tuple(names), models)


def _advanced(
    state: MonitorState,
    scored: Scored,
    rows: _Arrival,
    models: RevisionPredictions,
    now: float,
    settings: LoopSettings,
    decisions: list[Decision],
) -> MonitorState:
    """Everything that reads trusted rows but gate and watch."""
    if of_other_settings(state, models.standard_error, settings):
        state = _restarted(state, "the loop's settings changed: a new baseline", decisions)
    records, count = scored.records, len(scored.records)
    observations = Observations(
        scored.conditional,
        records.verified,
        records.accepted,
        models.survival(records, scored.conditional),
    )
    step = advance_streams(
        state,
        (scored.codes, scored.names),
        observations,
        scored.ingested,
        standard_error=models.standard_error,
        now=now,
        settings=settings,
    )
    decisions += step.alarms
    state = replace(
        step.state,
        rows=state.rows + count,
        rows_total=state.rows_total + count,
        dependence=state.dependence.add(observations, records),
        residuals=state.residuals.add(
            observations,
            scored.codes,
            [name for name, _ in scored.names],
            step.state.segments,
            OTHER,
        ),
        cool_down_rows=max(state.cool_down_rows - count, 0),
        sketches=state.sketches.add(
            records, batch=int(scored.ingested[0]), now=now, hours=settings.hours
        ),
    )
    state = _explained(state, records, settings)
    return _history(state, scored, models, now, settings)


def _explained(
    state: MonitorState, records: AcceptanceRecords, settings: LoopSettings
) -> MonitorState:
    """Reference traffic, and the newest in two halves."""
    stride = -(-len(records) // _SAMPLED_ROWS)
    summary = TrafficSummary.from_records(records.select(slice(None, None, stride)))
    parts = list(state.current or ())
    if parts and parts[-1].acceptance.rows < settings.traffic_rows // 2:
        parts[-1] = parts[-1] + summary
    else:
        parts = [*parts[-1:], summary]
    reference = state.reference
    if reference is None or reference.acceptance.rows < settings.traffic_rows // 2:
        reference = summary if reference is None else reference + summary
    return replace(state, current=tuple(parts), reference=reference)


def _joined(parts: tuple[TrafficSummary, ...]) -> TrafficSummary:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _history(
    state: MonitorState,
    scored: Scored,
    models: RevisionPredictions,
    now: float,
    settings: LoopSettings,
) -> MonitorState:
    sums = ErrorSums.of(scored.served, scored.records.verified, scored.records.accepted)
    errors = sums if state.errors is None else state.errors + sums
    # Points lie further apart as the stream grows.
    if errors.rows < max(settings.history_rows, state.rows_total // _POINTS):
        return replace(state, errors=errors)
    found = errors.error() or (None, None, None)
    evidence = evidence_log10(state, models.standard_error, settings)
    point = HistoryPoint(now, state.rows, evidence, *found)
    return replace(state, errors=None, history=thinned((*state.history, point)))


def _told(state: MonitorState, decisions: list[Decision], now: float) -> MonitorState:
    """Remember the last decision that a reader would ask about."""
    shown: Decision | None = None
    for decision in decisions:
        if not isinstance(decision, Resolve):
            shown = decision
    if shown is None:
        return state
    kind = decision_dict(shown)["kind"]
    reason = shown.leading if isinstance(shown, Alarm) else shown.reason
    return replace(state, last_decision=(kind, now, reason))
