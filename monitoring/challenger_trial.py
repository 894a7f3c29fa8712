"""The challenger beside the champion, and the champion beside the one it replaced.

Both are steps of the fold: rows that came after the challenger's fit feed the promotion gate, rows
that came after a promotion feed the rollback watch. Letters: N rows, γ draft positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calib.records import AcceptanceRecords
from calib.statuses import Refusal
from monitoring.loop_decisions import Decision, Promote, Refuse, RollBack
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, Trial, Watch
from monitoring.promotion_gate import GateDecision, GateStatus, PromotionGate
from monitoring.promotion_gate_guards import check_change
from monitoring.promotion_gate_rollback import RollbackWatch, WatchStatus
from monitoring.promotion_gate_scores import ScoredRows
from monitoring.revision_predictions import RevisionPredictions
from monitoring.store.revisions import Revision

__all__ = ["Scored", "advance_trial", "advance_watch", "gate_of", "watch_of"]

_LEANING: Final = float(np.log(2.0))  # bets on the previous revision have doubled
_GUARD_ROWS: Final = 64  # rows on which a change of served survival is measured


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Usable rows of a fold under the champion.

    Attributes:
        records: the rows.
        ingested: [N] stored batch of each.
        conditional: [N, γ] of the champion's model.
        served: [N, γ] survival by its served numbers.
        codes: [N] segment of each row, into ``names``.
        names: name and tags of each segment.
        champion: what it predicts.
    """

    records: AcceptanceRecords
    ingested: NDArray[np.int64]
    conditional: NDArray[np.float32]
    served: NDArray[np.float32]
    codes: NDArray[np.intp]
    names: tuple[tuple[str, Mapping[str, str]], ...]
    champion: RevisionPredictions

    def beside(self, other: RevisionPredictions, *, segments: bool) -> ScoredRows:
        """The rows with another revision as challenger."""
        names = None
        if segments and any(name for name, _ in self.names):
            labels = np.array([name or "(untagged)" for name, _ in self.names], dtype=object)
            names = labels[self.codes]
        return ScoredRows(
            self.conditional,
            other.conditional(self.records),
            self.records.verified,
            self.records.accepted,
            self.ingested,
            self.served,
            other.served_survival(self.records),
            names,
            self.champion.affine_survival(self.records),
            other.affine_survival(self.records),
        )


def gate_of(gamma: int, trial: Trial, settings: LoopSettings) -> PromotionGate:
    """The gate that a trial stands before."""
    return PromotionGate(
        gamma,
        fitted_through=trial.fitted_through,
        ordinal=trial.ordinal,
        alpha=settings.alpha,
        minimum_labels=settings.minimum_labels,
        maximum_rows=settings.gate_rows,
        design_effect=settings.design_effect,
    )


def watch_of(gamma: int, watch: Watch, settings: LoopSettings) -> RollbackWatch:
    """The watch over a promotion."""
    return RollbackWatch(
        gamma,
        promoted_at=watch.promoted_at,
        alpha=settings.alpha,
        watch_rows=settings.watch_rows,
        cool_down_rows=settings.cool_down_rows,
        design_effect=settings.design_effect,
    )


def advance_trial(
    state: MonitorState,
    scored: Scored | None,
    champion: Revision,
    challenger: Revision | None,
    *,
    settings: LoopSettings,
    free: bool,
    regret_increase: float | None = None,
) -> tuple[MonitorState, list[Decision]]:
    """The trial after more rows.

    Args:
        state: with the trial so far.
        scored: usable rows of the fold; None where there are none to trust.
        champion: what is served.
        challenger: what the alias points at; None for nothing.
        settings: of the loop.
        free: whether a promotion may be called for now: no hold and no cool-down.
        regret_increase: replayed throughput regret of the challenger less the champion's.
    """
    state = _met(state, challenger, settings)
    trial = state.trial
    if trial is None or challenger is None or trial.status != "collecting" or scored is None:
        return state, []
    if trial.revision != challenger.number or not len(scored.records):
        return state, []
    gate = gate_of(state.gamma, trial, settings)
    if not trial.bounded:
        guard = check_change(
            champion.calibration, challenger.calibration, scored.records.confidence_logits
        )
        if guard.refusal not in (None, Refusal.NO_ROWS):
            return _refused(state, trial, str(guard.refusal), guard.reason, guard.to_dict())
        trial = replace(trial, bounded=len(scored.records) >= _GUARD_ROWS)
    rows = scored.beside(RevisionPredictions.of(challenger), segments=True)
    step = gate.update(trial.gate, rows)
    decision = step.decision
    if regret_increase is not None:
        decision = gate.decide(step.state, regret_increase=regret_increase)
    trial = replace(trial, gate=step.state)
    state = replace(state, trial=trial)
    if decision.status is GateStatus.REFUSED:
        word = str(decision.refusal)
        return _refused(state, trial, word, decision.reason, decision.to_dict())
    if decision.status is GateStatus.PROMOTE and trial.bounded and free and _wanted(challenger):
        return _promoted(state, trial, decision)
    return state, []


def advance_watch(
    state: MonitorState,
    scored: Scored | None,
    previous: Revision | None,
    *,
    settings: LoopSettings,
) -> tuple[MonitorState, list[Decision]]:
    """The watch after more rows.

    An act alarm in the watch rolls back where bets on the previous revision have at least doubled
    since the promotion. Where they have not, serving it again would make things worse: the world
    has moved on, and the alarm leads to a refit.
    """
    watch = state.watch
    if watch is None or watch.done or previous is None or scored is None:
        return state, []
    if previous.number != watch.previous or not len(scored.records):
        return state, []
    rows = scored.beside(RevisionPredictions.of(previous), segments=False)
    watcher = watch_of(state.gamma, watch, settings)
    step = watcher.update(watch.state, rows)
    watch = replace(watch, state=step.state)
    alarm = state.acting and watcher.log_evidence(watch.state) >= _LEANING
    if alarm and step.status is WatchStatus.WATCHING:
        nothing = rows.select(np.zeros(len(rows), dtype=np.bool_))
        step = watcher.update(watch.state, nothing, act_alarm=True)
        watch = replace(watch, state=step.state)
    if step.status is WatchStatus.WATCHING:
        return replace(state, watch=watch), []
    if step.status is WatchStatus.KEPT:
        return replace(state, watch=None), []
    found = replace(watch, done=True)
    evidence = {
        "log_evidence": watcher.log_evidence(found.state),
        "rows": found.state.rows,
        "act_alarm": alarm,
    }
    decision = RollBack(watch.revision, watch.previous, step.reason, evidence)
    state = replace(state, watch=found, cool_down_rows=settings.cool_down_rows)
    return state, [decision]


def _met(state: MonitorState, challenger: Revision | None, settings: LoopSettings) -> MonitorState:
    """Start the trial of a challenger that is new, end that of one that is gone."""
    trial = state.trial
    if challenger is None:
        open_trial = trial is not None and trial.status == "collecting"
        return replace(state, trial=None) if open_trial else state
    if trial is not None and trial.revision == challenger.number:
        return state
    count = state.challengers + 1
    asked = state.rows if state.fit is None else state.fit.at_row
    fresh = Trial(
        challenger.number,
        _fitted_through(challenger, state.consumed_through),
        count,
        PromotionGate(state.gamma, fitted_through=0).start(),
        asked_row=asked,
    )
    return replace(
        state, trial=fresh, challengers=count, fit=None, fits=state.fits, last_fit_row=state.rows
    )


def _fitted_through(challenger: Revision, consumed: int) -> int:
    window = challenger.provenance.get("window")
    last = window.get("last_batch") if isinstance(window, Mapping) else None
    return int(last) if isinstance(last, int) else consumed


def _wanted(challenger: Revision) -> bool:
    """Whether its job left the decision to the gate."""
    options = challenger.provenance.get("options")
    return not (isinstance(options, Mapping) and options.get("promote") == "never")


def _refused(
    state: MonitorState, trial: Trial, word: str, reason: str, evidence: Mapping[str, Any]
) -> tuple[MonitorState, list[Decision]]:
    done = replace(trial, status="refused", reason=reason)
    return replace(state, trial=done), [Refuse(trial.revision, word, reason, evidence)]


def _promoted(
    state: MonitorState, trial: Trial, decision: GateDecision
) -> tuple[MonitorState, list[Decision]]:
    words = f"{decision.reason} after {decision.rows} rows"
    done = replace(trial, status="promoted", reason=words)
    promote = Promote(trial.revision, words, decision.to_dict())
    return replace(state, trial=done), [promote]
