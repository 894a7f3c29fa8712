"""Trials and watches as steps of the fold."""

from __future__ import annotations

from dataclasses import replace

from calib.calibration import Calibration
from monitoring.loop_decisions import Alarm, Promote, Refuse, RollBack, ScheduleFit
from monitoring.loop_settings import LoopSettings
from monitoring.revision_model import MODEL, RevisionModel
from monitoring.store.revisions import Revision
from tests.monitoring.loop_rows import folded, of_kind, revision, rows, started
from tests.monitoring.traffic import GAMMA

SETTINGS = LoopSettings(refit_rows=10**9)


def test_alpha_is_spent_over_successive_challengers() -> None:
    state = started(SETTINGS)
    for number in (1, 2, 3):
        state, _ = folded(
            state,
            rows(number, 200, first_step=200 * number),
            champion=revision(0),
            settings=SETTINGS,
            challenger=revision(number, 1.02, window={"last_batch": 0}),
            first_batch=10 * number,
        )
        assert state.trial is not None
        assert (state.trial.revision, state.trial.ordinal) == (number, number)
    state, _ = folded(
        state,
        rows(9, 200, first_step=900),
        champion=revision(3, 1.02),
        settings=SETTINGS,
        first_batch=50,
    )
    assert state.challengers == 0


def test_a_change_beyond_bounds_is_refused_at_once() -> None:
    champion = revision(1, 1.1)
    _, decided = folded(
        started(SETTINGS),
        rows(4, 500),
        champion=champion,
        settings=SETTINGS,
        challenger=revision(2, 4.9, window={"last_batch": 0}),
    )
    assert [each.refusal for each in of_kind(decided, Refuse)] == ["unbounded_change"]


def test_a_challenger_whose_affine_form_loses_is_not_promoted() -> None:
    """Its temperatures mend the champion's; engines on the affine form would lose."""
    right = Calibration.from_temperatures([1.6] * GAMMA, gamma=GAMMA)
    model = {MODEL: RevisionModel.of_calibration(right).to_dict()}

    def with_slopes(number: int, temperature: float, slope: float) -> Revision:
        plain = revision(number, temperature, **model, window={"last_batch": 0})
        affine = replace(plain.calibration, slopes=(slope,) * GAMMA, intercepts=(0.0,) * GAMMA)
        return replace(plain, calibration=affine)

    for slope, expected in ((1.0 / 1.6, [2]), (0.75 / 1.6, [])):
        _, decided = folded(
            started(SETTINGS),
            rows(6, 4000, scale=1.6),
            champion=with_slopes(1, 1.1, 1.0 / 1.6),
            settings=SETTINGS,
            challenger=with_slopes(2, 1.6, slope),
        )
        assert [each.challenger for each in of_kind(decided, Promote)][:1] == expected
        if not expected:
            (refused,) = of_kind(decided, Refuse)
            assert "slopes and intercepts" in refused.reason


def test_a_person_alone_promotes_what_was_ordered_so() -> None:
    for promote, expected in (("never", 0), ("gate", 1)):
        ordered = revision(1, 1.6, window={"last_batch": 0}, options={"promote": promote})
        _, decided = folded(
            started(SETTINGS),
            rows(5, 2500, scale=1.6),
            champion=revision(0),
            settings=SETTINGS,
            challenger=ordered,
        )
        assert len(of_kind(decided, Promote)) == expected


def test_a_world_that_moved_on_after_a_good_promotion_is_refitted_and_not_rolled_back() -> None:
    """An act alarm in the watch rolls back only where the previous revision scores higher."""
    settings = replace(SETTINGS, minimum_rows=600)
    state, _ = folded(
        started(settings), rows(6, 500, scale=1.6), champion=revision(0), settings=settings
    )
    good = revision(1, 1.6)
    state, _ = folded(
        state,
        rows(7, 2000, scale=1.6, first_step=500),
        champion=good,
        settings=settings,
        previous=revision(0),
        first_batch=5,
    )
    assert state.watch is not None
    state, decided = folded(
        state,
        rows(8, 2500, scale=2.6, first_step=2500),
        champion=good,
        settings=settings,
        previous=revision(0),
        first_batch=20,
    )
    assert [alarm.level for alarm in of_kind(decided, Alarm)] == ["warn", "act"]
    assert not of_kind(decided, RollBack)
    assert [fit.cause for fit in of_kind(decided, ScheduleFit)] == ["act"]


def test_a_world_that_moves_on_in_the_first_fold_after_a_promotion_is_not_rolled_back() -> None:
    """Before any row the evidence is 1 to within rounding: that is no lead of the previous one."""
    settings = replace(SETTINGS, minimum_rows=600)
    state, _ = folded(
        started(settings), rows(16, 500, scale=1.6), champion=revision(0), settings=settings
    )
    _, decided = folded(
        state,
        rows(17, 1500, scale=2.6, first_step=500),
        champion=revision(1, 1.6),
        settings=settings,
        previous=revision(0),
        batch_rows=1500,
        first_batch=5,
    )
    assert "act" in [alarm.level for alarm in of_kind(decided, Alarm)]
    assert not of_kind(decided, RollBack)


def test_an_alarm_in_the_watch_rolls_back_where_the_previous_one_scores_higher() -> None:
    state, _ = folded(started(SETTINGS), rows(18, 500), champion=revision(0), settings=SETTINGS)
    state, decided = folded(
        state,
        rows(19, 3000, first_step=500),
        champion=revision(1, 1.45),
        settings=SETTINGS,
        previous=revision(0),
        batch_rows=100,
        first_batch=5,
    )
    assert [back.previous for back in of_kind(decided, RollBack)] == [0]


def test_a_challenger_that_goes_away_ends_its_trial() -> None:
    state, _ = folded(
        started(SETTINGS),
        rows(9, 300),
        champion=revision(0),
        settings=SETTINGS,
        challenger=revision(1, 1.1, window={"last_batch": 0}),
    )
    assert state.trial is not None
    state, _ = folded(
        state, rows(10, 100, first_step=300), champion=revision(0), settings=SETTINGS, first_batch=9
    )
    assert state.trial is None
