"""Harm is rolled back, and a champion that is not worse is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError, FormatError
from monitoring.promotion_gate_rollback import (
    RollbackState,
    RollbackStep,
    RollbackWatch,
    WatchStatus,
)
from monitoring.promotion_gate_scores import ScoredRows
from tests.monitoring.gate_rows import EXACT, fitted, scored
from tests.monitoring.traffic import heads_traffic


def watch(**options: Any) -> RollbackWatch:
    settings = {"gamma": 7, "promoted_at": -1} | options
    return RollbackWatch(**settings)


def follow(chosen: RollbackWatch, rows: ScoredRows, batch: int = 500) -> RollbackStep:
    state = chosen.start()
    for start in range(0, len(rows), batch):
        index = np.arange(len(rows))
        step = chosen.update(state, rows.select((index >= start) & (index < start + batch)))
        state = RollbackState.from_dict(json.loads(json.dumps(step.state.to_dict())))
        assert state == step.state
    return step


def test_harm_is_rolled_back() -> None:
    rows = scored(heads_traffic(np.random.default_rng(1), 8000), (1.3, 0.0), EXACT)
    found = follow(watch(), rows)
    assert found.status is WatchStatus.ROLL_BACK
    assert found.state.rolled_back_row is not None
    assert found.state.rolled_back_row < 3000
    whole = watch().update(watch().start(), rows)
    assert whole.state.rolled_back_row == found.state.rolled_back_row  # whatever the batches


def test_harm_of_the_affine_form_alone_is_rolled_back() -> None:
    traffic = heads_traffic(np.random.default_rng(4), 8000)
    found = follow(watch(), scored(traffic, EXACT, EXACT, affine=((1.3, 0.0), EXACT)))
    assert found.status is WatchStatus.ROLL_BACK


def test_good_champion_is_kept_when_the_watch_is_over() -> None:
    rows = scored(heads_traffic(np.random.default_rng(2), 6000), EXACT, (1.3, 0.0))
    found = follow(watch(watch_rows=5000), rows)
    assert found.status is WatchStatus.KEPT
    assert found.state.rows == 5000


def test_act_alarm_rolls_back_only_within_the_watch() -> None:
    rows = scored(heads_traffic(np.random.default_rng(3), 500), EXACT, EXACT)
    chosen = watch(watch_rows=400)
    alarmed = chosen.update(chosen.start(), rows, act_alarm=True)
    assert alarmed.status is WatchStatus.ROLL_BACK
    assert "act alarm" in alarmed.reason
    assert chosen.update(alarmed.state, rows).status is WatchStatus.ROLL_BACK
    over = replace(chosen.start(), rows=400)
    assert chosen.update(over, rows, act_alarm=True).status is WatchStatus.KEPT


def test_only_rows_after_the_promotion_count() -> None:
    rows = scored(heads_traffic(np.random.default_rng(4), 500), (1.3, 0.0), EXACT, first=100)
    chosen = watch(promoted_at=399)
    assert chosen.update(chosen.start(), rows).state.rows == 200


def test_cool_down() -> None:
    assert watch(cool_down_rows=1000).cool_down_ends(5000) == 6000


def test_inputs_are_checked() -> None:
    rows = scored(heads_traffic(np.random.default_rng(5), 10), EXACT, EXACT)
    with pytest.raises(ConfigurationError, match="gamma"):
        watch(gamma=2).update(watch(gamma=2).start(), rows)
    bare = replace(rows, champion_survival=None, challenger_survival=None)
    with pytest.raises(ConfigurationError, match="survival"):
        watch().update(watch().start(), bare)
    for options in ({"alpha": 0.0}, {"watch_rows": 0}, {"cool_down_rows": 0}):
        with pytest.raises(ConfigurationError):
            watch(**options)
    with pytest.raises(FormatError, match="rollback state"):
        RollbackState.from_dict({"rows": 0})


@pytest.mark.slow
@pytest.mark.statistical
def test_a_champion_that_is_not_worse_is_rarely_rolled_back() -> None:
    runs, wrong = 300, 0
    for seed in range(runs):
        rng = np.random.default_rng([77, seed])
        rows = scored(heads_traffic(rng, 3000), EXACT, fitted(rng, 10_000))
        wrong += watch().update(watch().start(), rows).status is WatchStatus.ROLL_BACK
    assert wrong / runs <= 0.05
