"""When a refit is due: after alarms, by the clock, and never two at once."""

from __future__ import annotations

from dataclasses import replace

from monitoring.loop_decisions import ScheduleFit
from monitoring.loop_settings import LoopSettings
from monitoring.refit_schedule import fit_ended, fit_ordered, schedule_fit
from tests.monitoring.loop_rows import folded, of_kind, revision, rows, started

SETTINGS = LoopSettings(refit_rows=4000, refit_seconds=0.0)


def test_an_act_alarm_waits_for_enough_rows_after_the_change() -> None:
    _, decided = folded(
        started(SETTINGS), rows(1, 3000, scale=1.6), champion=revision(0), settings=SETTINGS
    )
    fits = of_kind(decided, ScheduleFit)
    assert [fit.cause for fit in fits] == ["act"]
    assert fits[0].window_from == 1
    assert 1000 <= fits[0].rows <= 1500
    assert fits[0].through == 2


def test_after_a_fit_that_changed_nothing_the_window_has_to_double() -> None:
    state, _ = folded(
        started(SETTINGS), rows(1, 1500, scale=1.6), champion=revision(0), settings=SETTINGS
    )
    assert state.fit is not None
    state = fit_ended(fit_ordered(state, "job"))
    seen = []
    for number in range(8):
        state, decided = folded(
            state,
            rows(20 + number, 500, scale=1.6, first_step=1500 + 500 * number),
            champion=revision(0),
            settings=SETTINGS,
            first_batch=10 + number,
        )
        if of_kind(decided, ScheduleFit):
            seen.append(of_kind(decided, ScheduleFit)[0].rows)
            state = fit_ended(state)
    assert len(seen) == 1
    assert 2900 <= seen[0] <= 3500  # 1,500 rows were seen, then twice as many


def test_without_alarms_one_is_due_every_so_many_rows_and_seconds() -> None:
    state, decided = folded(
        started(SETTINGS), rows(2, 4500), champion=revision(0), settings=SETTINGS
    )
    assert [fit.cause for fit in of_kind(decided, ScheduleFit)] == ["schedule"]
    assert of_kind(decided, ScheduleFit)[0].window_from is None
    slow = replace(SETTINGS, refit_seconds=1e6)
    _, decided = folded(started(slow), rows(2, 4500), champion=revision(0), settings=slow)
    assert not of_kind(decided, ScheduleFit)
    held = schedule_fit(fit_ended(state), settings=SETTINGS, free=False, now=state.updated_at)
    assert held[1] is None


def test_r58_too_few_rows_are_no_refit() -> None:
    _, decided = folded(
        started(SETTINGS), rows(3, 8, scale=3.0), champion=revision(0), settings=SETTINGS
    )
    assert not decided
