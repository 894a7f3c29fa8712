"""When a refit is due, and on which rows.

An act alarm asks for one as soon as enough rows came after the change; a warning asks for one
later, on more rows; without either, one is due every so often. One fit is under way at a time.
After an attempt that changed nothing the next one waits until its window has doubled, so that a
drift that no fit can mend does not fit for ever.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from monitoring.loop_decisions import ScheduleFit
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import MonitorState, PendingFit

__all__ = ["fit_ended", "fit_ordered", "schedule_fit"]

_WARN_FACTOR: Final = 3  # a warning is no hurry: its fit may have three times the rows

Cause = Literal["act", "warn", "schedule"]


def schedule_fit(
    state: MonitorState, *, settings: LoopSettings, free: bool, now: float
) -> tuple[MonitorState, ScheduleFit | None]:
    """The fit that is due, if any; a state that asks for it waits for :func:`fit_ended`.

    Args:
        state: after the rows of a fold.
        settings: of the loop.
        free: whether anything may be fitted now: no hold and no cool-down.
        now: seconds since the epoch.
    """
    if not free or state.fit is not None or state.drift is None:
        return state, None
    if state.trial is not None and state.trial.status == "promoted":
        return state, None  # what is served is about to change
    trying = state.trial is not None and state.trial.status == "collecting"
    found = _after_alarm(state, settings, trying)
    if found is None and not trying:
        found = _by_the_clock(state, settings, now)
    if found is None:
        return state, None
    asked = replace(
        state,
        fit=PendingFit(found.cause, state.rows),
        fits=state.fits + 1,
        last_fit_row=state.rows,
        last_fit_at=now,
    )
    return asked, found


def fit_ordered(state: MonitorState, ticket: str) -> MonitorState:
    """The state with the job that does its fit."""
    return state if state.fit is None else replace(state, fit=replace(state.fit, ticket=ticket))


def fit_ended(state: MonitorState) -> MonitorState:
    """The state after a fit that left no challenger: the next one may be asked for."""
    return replace(state, fit=None, last_fit_row=state.rows)


def _after_alarm(state: MonitorState, settings: LoopSettings, trying: bool) -> ScheduleFit | None:
    total = 0 if state.drift is None else state.drift.act.rows
    if state.acting and state.act_row is not None:
        row, batch = state.act_row
        older = state.trial is not None and state.trial.fitted_through < batch
        if trying and not older:
            return None
        found = _from(state, row, batch, "act", settings.minimum_rows, total)
        if found is None or "act" in state.announced:
            return found
        # The other segments have not changed: their rows before the change count as well.
        return replace(found, window_from=None, segmented=True)
    if "warn" in state.announced and state.drift is not None and not trying:
        alarm = state.drift.warn.alarm
        if alarm is not None:
            row = alarm.change_point.row
            batch = (state.marks.at(row) or (0, 0.0))[0]
            least = _WARN_FACTOR * settings.minimum_rows
            return _from(state, row, batch, "warn", least, total)
    return None


def _from(
    state: MonitorState, row: int, batch: int, cause: Cause, least: int, total: int
) -> ScheduleFit | None:
    rows = total - row
    # Rows of the change that the last attempt could see: none, or less, where it came before.
    seen = rows - (state.rows - state.last_fit_row)
    if rows < max(least, 2 * seen):
        return None
    reason = f"{cause} alarm: {rows} rows since the change"
    return ScheduleFit(reason, cause, batch, state.consumed_through, rows)


def _by_the_clock(state: MonitorState, settings: LoopSettings, now: float) -> ScheduleFit | None:
    rows = state.rows - state.last_fit_row
    started = max(state.last_fit_at, state.baseline_at)
    if rows < settings.refit_rows or now - started < settings.refit_seconds:
        return None
    reason = f"schedule: {rows} rows since the last fit"
    return ScheduleFit(reason, "schedule", None, state.consumed_through, rows)
