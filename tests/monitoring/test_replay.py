"""The whole loop in memory: found, refitted, gated, promoted, and told in order."""

from __future__ import annotations

import numpy as np
import pytest

from monitoring.loop_settings import LoopSettings
from monitoring.replay import Happening, Replay, ReplayOptions, ReplayResult, Stretch
from tests.monitoring.loop_rows import rows

SETTINGS = LoopSettings(refit_seconds=0.0, refit_rows=10**9, early_fit_method="temperature")


@pytest.fixture(scope="module")
def shifted() -> ReplayResult:
    scale = np.where(np.arange(7000) < 2500, 1.0, 1.6)
    stretches = [Stretch("calm", 0, 2500), Stretch("shifted", 2500, 4500)]
    return Replay(rows(1, 7000, scale=scale), stretches, settings=SETTINGS).run()


def kinds(happenings: tuple[Happening, ...]) -> list[str]:
    return [happening.kind for happening in happenings]


def test_a_shift_is_found_refitted_gated_and_promoted(shifted: ReplayResult) -> None:
    assert kinds(shifted.happenings) == [
        "stretch",
        "alarm",
        "alarm",
        "schedule_fit",
        "challenger",
        "promote",
        "resolve",
    ]
    found = {happening.kind: happening for happening in shifted.happenings}
    assert 2500 < found["alarm"].row < 3500
    assert found["promote"].row < 7000
    assert [number for _, number in shifted.champions] == [0, 1]
    fitted = shifted.revisions[1].calibration.temperatures
    np.testing.assert_allclose(fitted[:3], 1.6, rtol=0.15)
    assert shifted.state.rows_total == 7000


def test_the_same_rows_are_the_same_story(shifted: ReplayResult) -> None:
    scale = np.where(np.arange(7000) < 2500, 1.0, 1.6)
    stretches = [Stretch("calm", 0, 2500), Stretch("shifted", 2500, 4500)]
    again = Replay(rows(1, 7000, scale=scale), stretches, settings=SETTINGS).run()
    assert again.happenings == shifted.happenings
    assert again.champions == shifted.champions


def test_a_baseline_is_fitted_by_hand_and_not_watched() -> None:
    options = ReplayOptions(baseline_rows=2000)
    result = Replay(rows(2, 4000, scale=1.5), settings=SETTINGS, options=options).run()
    assert kinds(result.happenings) == ["baseline"]
    assert result.champions == ((0, 0), (2000, 1))
    assert result.state.rows_total == 2000
    assert result.state.watch is None


def test_an_announced_swap_is_a_new_baseline_at_identity_and_an_unannounced_one_is_not() -> None:
    scale = np.where(np.arange(3000) < 1500, 1.0, 1.8)
    records = rows(3, 3000, scale=scale)
    for announced in (True, False):
        stretches = [Stretch("old", 0, 1500), Stretch("new", 1500, 1500, announced)]
        settings = LoopSettings(refit_rows=10**9, minimum_rows=10**6)
        result = Replay(records, stretches, settings=settings).run()
        assert ("key" in kinds(result.happenings)) == announced
        assert len(result.champions) == 1 + announced
        assert "alarm" in kinds(result.happenings)
        assert result.state.rows_total == (1500 if announced else 3000)
