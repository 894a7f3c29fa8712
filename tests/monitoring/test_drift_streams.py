"""Detectors of all traffic and of segments: who is flagged, and what hides what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitoring.drift_streams import (
    OTHER,
    act_tolerance,
    of_other_settings,
    pooled_detectors,
    segment_names,
)
from monitoring.loop_decisions import Alarm, ScheduleFit
from monitoring.loop_settings import LoopSettings
from tests.monitoring.loop_rows import folded, of_kind, revision, rows, started

SETTINGS = LoopSettings(refit_seconds=0.0)


def test_one_segment_that_drifts_is_named_and_asks_for_numbers_by_segment() -> None:
    count = 12_000
    domain = np.resize(np.array(["chat", "code", "math", "law", "news"] * 2, dtype=object), count)
    scale = np.where(domain == "law", 2.0, 1.0)
    records = rows(1, count, scale=scale, domain=domain.tolist())
    state, decided = folded(
        started(SETTINGS), records, champion=revision(0), settings=SETTINGS, batch_rows=3000
    )
    acts = [alarm for alarm in of_kind(decided, Alarm) if alarm.level == "act"]
    assert acts[0].segment == {"domain": "law"}
    assert acts[0].detector == "segment"
    fits = of_kind(decided, ScheduleFit)
    assert fits
    if "act" not in state.announced:
        assert fits[0].segmented
        assert fits[0].window_from is None
    assert len([alarm for alarm in acts if alarm.segment is not None]) == 1


def test_segments_beyond_the_limit_share_a_stream() -> None:
    settings = LoopSettings(maximum_segments=3)
    domain = [f"d{index % 6}" for index in range(600)]
    state, _ = folded(
        started(settings),
        rows(2, 600, domain=domain),
        champion=revision(0),
        settings=settings,
        batch_rows=300,
    )
    assert len(state.segments) == 3
    assert OTHER in state.segments
    assert sum(stream.state.rows for stream in state.segments.values()) == 600


def test_segments_are_named_by_the_tags_a_row_knows() -> None:
    records = rows(3, 4, domain=["a", None, "a", None], sampling_temperature=[0.0, 0.7, None, None])
    codes, names = segment_names(records)
    found = [names[code] for code in codes]
    assert found[0] == (
        "sampling_temperature=0, domain=a",
        {"sampling_temperature": "0", "domain": "a"},
    )
    assert found[1][1] == {"sampling_temperature": "0.5-0.85"}
    assert found[2][1] == {"domain": "a"}
    assert found[3] == ("", {})


def test_budgets_of_pooled_and_segment_streams_add_up_to_one_threshold() -> None:
    settings = LoopSettings(act_threshold=1e6, maximum_segments=16)
    share = settings.act_threshold / settings.pooled_threshold
    assert abs(share + 1.0 / settings.maximum_segments - 1.0) < 1e-12
    levels = pooled_detectors(7, None, settings)
    assert levels.survival is not None
    both = 1.0 / levels.act.threshold + 1.0 / levels.survival.threshold
    assert abs(both - 1.0 / settings.pooled_threshold) < 1e-15


def test_a_fleet_that_begins_at_once_alarms_no_earlier_than_256_rows() -> None:
    """Far off from the first row: seen at once, told when other steps than the first have come."""
    records = rows(4, 320, scale=4.0)
    state, decided = folded(
        started(SETTINGS), records, champion=revision(0), settings=SETTINGS, batch_rows=32
    )
    assert state.drift is not None
    assert state.drift.act.alarm is not None
    assert state.drift.act.alarm.row == 255
    assert [alarm.row for alarm in of_kind(decided, Alarm) if alarm.level == "act"] == [255]


def test_another_design_effect_begins_a_new_baseline() -> None:
    state, _ = folded(
        started(SETTINGS), rows(5, 600), champion=revision(0), settings=SETTINGS, batch_rows=600
    )
    other = replace(SETTINGS, design_effect=2.0)
    assert of_other_settings(state, None, other)
    after, _ = folded(state, rows(6, 64, first_step=6400), champion=revision(0), settings=other)
    assert after.drift is not None
    assert (after.drift.act.rows, after.rows) == (64, 664)


def test_the_band_is_never_narrower_than_the_error_of_the_fit() -> None:
    assert act_tolerance(None, SETTINGS) == 0.01
    assert act_tolerance(0.012, SETTINGS) == 0.024
    assert act_tolerance(0.2, SETTINGS) == 0.15
