"""The fold: counting, re-scoring, alarms at the same row, holds, one event per change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calib.records import AcceptanceRecords, Flag
from monitoring.loop_decisions import Alarm, Hold, Promote, Resolve, RollBack, ScheduleFit
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state_bytes import state_from_bytes, state_to_bytes
from tests.monitoring.loop_rows import folded, of_kind, one, revision, rows, started

SETTINGS = LoopSettings(refit_seconds=0.0)
IDENTITY = revision(0)


def drifting(seed: int = 1, before: int = 1000, after: int = 1000) -> AcceptanceRecords:
    scale = np.where(np.arange(before + after) < before, 1.0, 1.6)
    return rows(seed, before + after, scale=scale)


def test_r68_a_restart_in_the_middle_alarms_at_the_same_row() -> None:
    records = drifting()
    whole, decided = folded(started(SETTINGS), records, champion=IDENTITY, settings=SETTINGS)
    state, again = started(SETTINGS), []
    for number, start in enumerate(range(0, len(records), 500), 1):
        state = state_from_bytes(state_to_bytes(state))  # stored and read at every batch
        found = one(state, records.select(slice(start, start + 500)), IDENTITY, SETTINGS, number)
        state, again = found.state, [*again, *found.decisions]
    assert again == decided
    assert of_kind(decided, Alarm)
    assert state_to_bytes(state) == state_to_bytes(whole)


def test_alarms_do_not_depend_on_how_the_stream_is_cut() -> None:
    found = []
    for size in (500, 2000):
        _, decided = folded(
            started(SETTINGS), drifting(), champion=IDENTITY, settings=SETTINGS, batch_rows=size
        )
        alarms = of_kind(decided, Alarm)
        found.append([(alarm.level, alarm.row, alarm.change_row) for alarm in alarms])
    assert found[0] == found[1]
    assert [level for level, _, _ in found[0]] == ["warn", "act"]
    for _, row, change in found[0]:
        assert 1000 < row < 2000
        assert abs(change - 1000) < 200


def test_r55_one_alarm_per_change_and_none_after_the_new_baseline() -> None:
    state, decided = folded(
        started(SETTINGS), rows(3, 6000, scale=1.6), champion=IDENTITY, settings=SETTINGS
    )
    assert [alarm.level for alarm in of_kind(decided, Alarm)] == ["warn", "act"]
    mended = revision(1, 1.6)
    later = rows(4, 3000, scale=1.6, first_step=6000)
    state, decided = folded(
        state, later, champion=mended, settings=SETTINGS, first_batch=20, previous=IDENTITY
    )
    assert not of_kind(decided, Alarm)
    assert [each.dedup_key for each in of_kind(decided, Resolve)] == ["drift"]
    assert (state.champion, state.rows, state.rows_total) == (1, 3000, 9000)


def test_rows_are_scored_under_the_champion_whatever_revision_made_them() -> None:
    records = rows(5, 2000, scale=1.6)
    columns = {
        **records.columns(),
        "revision": np.full(2000, 7),
        "applied_form": ["identity"] * 2000,
    }
    claimed = AcceptanceRecords.from_columns(7, columns)
    right = revision(7, 1.6)
    one_way, _ = folded(started(SETTINGS), records, champion=right, settings=SETTINGS)
    other, decided = folded(started(SETTINGS), claimed, champion=right, settings=SETTINGS)
    assert one_way.drift is not None
    assert other.drift is not None
    assert one_way.drift.to_dict() == other.drift.to_dict()
    assert not of_kind(decided, Alarm)


def test_r52_flagged_and_anticipating_rows_are_counted_and_left_out() -> None:
    records = rows(6, 1000)
    spoilt = np.zeros(1000, dtype=np.bool_)
    spoilt[::4] = True
    clean = records.select(~spoilt)
    forced = records.with_flag(Flag.FORCED_ACCEPTANCE, spoilt)
    columns = {**forced.columns(), "anticipating": np.arange(1000) % 8 == 1}
    mixed = AcceptanceRecords.from_columns(7, columns)
    expected = mixed.select(mixed.usable())
    found = one(started(SETTINGS), mixed, IDENTITY, SETTINGS, 1)
    alone = one(started(SETTINGS), expected, IDENTITY, SETTINGS, 1)
    assert (found.counted, found.excluded) == (625, 375)
    assert found.state.excluded == {"forced_acceptance": 250, "anticipating": 125}
    assert found.state.drift is not None
    assert alone.state.drift is not None
    assert found.state.drift.to_dict() == alone.state.drift.to_dict()
    assert len(clean) == 750


def test_r41_a_batch_sent_twice_counts_once() -> None:
    records = rows(7, 600)
    first = one(started(SETTINGS), records, IDENTITY, SETTINGS, 1)
    again = one(first.state, records, IDENTITY, SETTINGS, 2)
    replayed = one(
        again.state, records.with_flag(Flag.REPLAY, np.ones(600, bool)), IDENTITY, SETTINGS, 3
    )
    assert (first.counted, again.counted, replayed.counted) == (600, 0, 0)
    assert (again.duplicates, replayed.duplicates) == (600, 600)
    assert replayed.state.rows_total == 600
    assert replayed.state.consumed_through == 3


def test_untrustworthy_telemetry_holds_and_begins_a_new_baseline() -> None:
    good = rows(8, 1000)
    state, _ = folded(started(SETTINGS), good, champion=IDENTITY, settings=SETTINGS)
    columns = rows(9, 1500, first_step=1000).columns()
    columns["accepted"] = columns["verified"].copy()  # every position, every row
    faulty = AcceptanceRecords.from_columns(7, columns)
    state, decided = folded(state, faulty, champion=IDENTITY, settings=SETTINGS, first_batch=10)
    assert [hold.monitor for hold in of_kind(decided, Hold)] == ["always_accepted"]
    told = decided.index(of_kind(decided, Hold)[0])
    assert not of_kind(decided[told:], ScheduleFit)
    assert not of_kind(decided[told:], Alarm)
    assert state.held > 0
    state, decided = folded(
        state, rows(10, 2000, first_step=2500), champion=IDENTITY, settings=SETTINGS, first_batch=20
    )
    assert "data_quality/always_accepted" in [r.dedup_key for r in of_kind(decided, Resolve)]
    assert state.drift is not None
    assert state.drift.act.rows <= 2000
    assert not state.announced


def test_r61_nothing_at_all_is_told_as_silence() -> None:
    state, _ = folded(started(SETTINGS), rows(11, 500), champion=IDENTITY, settings=SETTINGS)
    quiet = one(state, None, IDENTITY, SETTINGS, 0, now=state.updated_at + 301.0)  # type: ignore[arg-type]
    assert [hold.monitor for hold in of_kind(quiet.decisions, Hold)] == ["silence"]
    back = one(quiet.state, rows(12, 200, first_step=500), IDENTITY, SETTINGS, 9)
    assert [r.dedup_key for r in of_kind(back.decisions, Resolve)] == ["data_quality/silence"]
    assert back.state.rows == 700  # what was learnt before stays
    idle = one(state, None, IDENTITY, SETTINGS, 0, now=state.updated_at + 301.0, expected=False)  # type: ignore[arg-type]
    assert not idle.decisions


def test_a_better_challenger_is_promoted_on_rows_after_its_fit_alone() -> None:
    settings = replace(SETTINGS, refit_rows=10**9)
    better = revision(1, 1.25, window={"last_batch": 4})
    state, decided = folded(
        started(settings),
        rows(13, 6000, scale=1.25),
        champion=IDENTITY,
        settings=settings,
        challenger=better,
    )
    assert state.trial is not None
    assert state.trial.gate.skipped == 2000  # batches 1 to 4
    assert [each.challenger for each in of_kind(decided, Promote)] == [1]


def test_a_worse_champion_is_rolled_back_and_cooled_down() -> None:
    settings = replace(SETTINGS, refit_rows=10**9)
    state, _ = folded(started(settings), rows(14, 500), champion=IDENTITY, settings=settings)
    harmful = revision(1, 1.6)
    state, decided = folded(
        state,
        rows(15, 4000, first_step=500),
        champion=harmful,
        settings=settings,
        previous=IDENTITY,
        first_batch=10,
    )
    backs = of_kind(decided, RollBack)
    assert [(back.champion, back.previous) for back in backs] == [(1, 0)]
    assert state.cool_down_rows > 0
    better = revision(2, 1.0, window={"last_batch": 1})
    state, decided = folded(
        state,
        rows(16, 1000, first_step=4500),
        champion=IDENTITY,
        settings=settings,
        challenger=better,
        previous=harmful,
        first_batch=30,
    )
    assert 0 < state.cool_down_rows < settings.cool_down_rows
    assert not of_kind(decided, Promote)
    assert state.watch is None  # a rollback is not watched


def test_other_settings_begin_a_new_baseline_and_resolve_the_alarm() -> None:
    state, decided = folded(
        started(SETTINGS), rows(18, 1500, scale=1.6), champion=IDENTITY, settings=SETTINGS
    )
    assert of_kind(decided, Alarm)
    stricter = replace(SETTINGS, act_threshold=1e9)
    found = one(state, rows(19, 64, first_step=1500), IDENTITY, stricter, 9)
    assert [each.dedup_key for each in of_kind(found.decisions, Resolve)] == ["drift"]
    assert found.state.drift is not None
    assert found.state.drift.act.rows == 64
    assert found.state.rows == 1564  # of the champion, whatever watches it


def test_another_gamma_is_held_and_not_folded() -> None:
    foreign = AcceptanceRecords.from_columns(
        2, {"confidence_logits": [[0.5, 0.5]], "verified": [2], "accepted": [1]}
    )
    found = one(started(SETTINGS), foreign, IDENTITY, SETTINGS, 1)
    assert [hold.monitor for hold in of_kind(found.decisions, Hold)] == ["gamma_mismatch"]
    assert found.state.rows_total == 0


def test_watching_alone_decides_nothing_that_is_served() -> None:
    settings = replace(SETTINGS, automatic=False)
    _, decided = folded(
        started(settings),
        rows(17, 4000, scale=1.6),
        champion=IDENTITY,
        settings=settings,
        challenger=revision(1, 1.6, window={"last_batch": 0}),
    )
    assert {type(decision) for decision in decided} == {Alarm}


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("seeds", "count"),
    [(20, 256), pytest.param(200, 512, marks=pytest.mark.slow)],
)
def test_false_alarms_keep_their_rate_while_calibrated_traffic_drifts(
    seeds: int, count: int
) -> None:
    """P(alarm within t rows) <= t / A for warn and act each, A = 1,000; difficulty swings."""
    settings = LoopSettings(act_threshold=1e3, warn_threshold=1e3, automatic=False)
    alarms = {"warn": 0, "act": 0}
    for seed in range(seeds):
        swing = 1.5 * np.sin(np.arange(count) / 97.0 + seed)
        records = rows(1000 + seed, count, center=swing, domain=["a", "b", "c", "d"] * (count // 4))
        _, decided = folded(started(settings), records, champion=IDENTITY, settings=settings)
        for alarm in of_kind(decided, Alarm):
            alarms[alarm.level] += 1
    bound = min(count / 1e3, 1.0)
    spread = 3.0 * (bound * (1.0 - bound) / seeds) ** 0.5
    assert alarms["warn"] / seeds <= bound + spread
    assert alarms["act"] / seeds <= bound + spread


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("seeds", "count"), [(4, 2000), pytest.param(40, 8000, marks=pytest.mark.slow)]
)
def test_noise_is_not_promoted(seeds: int, count: int) -> None:
    """A challenger off by 3 % against an exact champion: at most alpha_1 = .03 of the runs."""
    settings = LoopSettings(refit_rows=10**9)
    promoted = 0
    for seed in range(seeds):
        challenger = revision(1, 1.03 if seed % 2 else 0.97, window={"last_batch": 0})
        _, decided = folded(
            started(settings),
            rows(2000 + seed, count),
            champion=IDENTITY,
            settings=settings,
            challenger=challenger,
            batch_rows=1000,
        )
        promoted += len(of_kind(decided, Promote))
    assert promoted / seeds <= 0.031 + 3.0 * (0.031 / seeds) ** 0.5


@pytest.mark.statistical
@pytest.mark.slow
def test_a_day_of_challengers_spends_one_error_and_not_one_each() -> None:
    """24 challengers fitted on noise, one after another, against an exact champion: 12 days.

    Any promotion in a day has probability at most alpha = .05; 3 of 12 would be 4 deviations.
    """
    settings = LoopSettings(refit_rows=10**9)
    days = 0
    for day in range(12):
        state, promoted = started(settings), 0
        for hour in range(24):
            off = float(np.exp(0.03 * np.random.default_rng(31 * day + hour).normal()))
            state, decided = folded(
                state,
                rows(5000 + 24 * day + hour, 600, first_step=600 * hour),
                champion=IDENTITY,
                settings=settings,
                challenger=revision(hour + 1, off, window={"last_batch": hour}),
                batch_rows=600,
                first_batch=hour + 1,
            )
            promoted += len(of_kind(decided, Promote))
        assert state.challengers == 24
        days += promoted > 0
    assert days <= 2
