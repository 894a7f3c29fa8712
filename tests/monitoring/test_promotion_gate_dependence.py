"""Gate and watch where rows of a request share luck: what breaks, what a design effect mends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError
from monitoring.challenger_trial import gate_of, watch_of
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state import Trial, Watch
from monitoring.promotion_gate import GateStatus, PromotionGate, SegmentScore
from monitoring.promotion_gate_rollback import RollbackWatch, WatchStatus
from monitoring.promotion_gate_scores import ScoredRows, component_weights
from tests.monitoring.gate_rows import EXACT, scored
from tests.monitoring.traffic import heads_traffic, shared_luck_traffic

STALE = (1.25, 0.0)
TOO_EASY = (1.0, 0.1)  # costs .0006 nats a label, and gains on every lucky request


def gate(effect: float) -> PromotionGate:
    return PromotionGate(7, fitted_through=-1, design_effect=effect)


def watch(effect: float) -> RollbackWatch:
    return RollbackWatch(7, promoted_at=-1, design_effect=effect)


def test_evidence_is_the_root_of_the_wealth_and_states_do_not_depend_on_it() -> None:
    rows = scored(heads_traffic(np.random.default_rng(1), 2500), STALE, EXACT)
    plain, tempered = (gate(d).update(gate(d).start(), rows) for d in (1.0, 2.0))
    assert plain.state.log_better == tempered.state.log_better
    wealth = component_weights(7, survival=True) * np.exp(np.array(plain.state.log_better) / 2.0)
    assert tempered.decision.log_evidence == pytest.approx(math.log(wealth.sum()))
    assert plain.state.crossed_row is not None
    later = tempered.state.crossed_row
    assert later is None or later > plain.state.crossed_row
    back = scored(heads_traffic(np.random.default_rng(1), 2500), EXACT, STALE).swapped()
    for effect in (1.0, 2.0):
        step = watch(effect).update(watch(effect).start(), back)
        found = gate(effect).update(gate(effect).start(), back).decision.log_evidence
        assert watch(effect).log_evidence(step.state) == pytest.approx(found)


def test_a_bound_of_a_mean_widens_by_the_root() -> None:
    score = SegmentScore(1000, 0.0, 90.0, ())
    assert score.loss_bound(4.0) == pytest.approx(2.0 * score.loss_bound())


def test_the_setting_of_the_loop_reaches_both() -> None:
    settings = LoopSettings(design_effect=3.3)
    trial = Trial(1, 0, 1, gate(1.0).start())
    assert gate_of(7, trial, settings).design_effect == 3.3
    promoted = Watch(1, 0, 0, watch(1.0).start())
    assert watch_of(7, promoted, settings).design_effect == 3.3
    for wrong in (gate, watch):
        with pytest.raises(ConfigurationError, match="design_effect"):
            wrong(0.5)


def promotes(effect: float, rows: ScoredRows) -> bool:
    chosen = gate(effect)
    state, index = chosen.start(), np.arange(len(rows))
    for start in range(0, len(rows), 500):
        step = chosen.update(state, rows.select((index >= start) & (index < start + 500)))
        state = step.state
        if step.decision.status is not GateStatus.WAITING:
            return step.decision.status is GateStatus.PROMOTE
    return False


def rolls_back(effect: float, rows: ScoredRows) -> bool:
    chosen = watch(effect)
    return chosen.update(chosen.start(), rows).status is WatchStatus.ROLL_BACK


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("decides", [promotes, rolls_back])
def test_a_worse_model_wins_at_most_five_per_cent_where_requests_share_luck(decides: Any) -> None:
    """The champion is exact over requests; 400 rows of one request at a time are lucky together.

    Sums of gains over such a request vary 11 times as much as those of independent rows: the
    intraclass correlation is .025, and 1 + 399 · .025 = 11. The plain test is wrong in more than
    5 %, by three standard errors of what 60 runs at 5 % give.
    """
    runs = 60
    wrong = dict.fromkeys((1.0, 11.0), 0)
    for seed in range(runs):
        traffic = shared_luck_traffic(
            np.random.default_rng([92, seed]), 4000, side_by_side=1, request_rows=400
        )
        rows = scored(traffic, EXACT, TOO_EASY)
        for effect in wrong:
            wrong[effect] += decides(effect, rows)
    assert wrong[11.0] / runs <= 0.05
    assert wrong[1.0] / runs > 0.05 + 3.0 * math.sqrt(0.05 * 0.95 / runs)
