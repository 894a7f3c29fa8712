"""What is promoted, what is refused and why, and how often the gate is wrong."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError, FormatError
from calib.statuses import Refusal
from monitoring.promotion_gate import (
    GateDecision,
    GateState,
    GateStatus,
    PromotionGate,
    SegmentScore,
    challenger_alpha,
)
from monitoring.promotion_gate_scores import OTHER_SEGMENT, ScoredRows
from tests.monitoring.gate_rows import EXACT, fitted, scored
from tests.monitoring.traffic import heads_traffic

STALE = (1.25, 0.0)
KEPT = (10.0,) * 8  # log evidence that neither form loses anything


def gate(**options: Any) -> PromotionGate:
    settings = {"gamma": 7, "fitted_through": -1} | options
    return PromotionGate(**settings)


def judge(chosen: PromotionGate, rows: ScoredRows, batch: int = 200) -> GateDecision:
    """Feed batches until the gate decides."""
    state = chosen.start()
    for start in range(0, len(rows), batch):
        index = np.arange(len(rows))
        step = chosen.update(state, rows.select((index >= start) & (index < start + batch)))
        state = step.state
        if step.decision.status is not GateStatus.WAITING:
            break
    return step.decision


def coins(truth: float, champion: float, challenger: float, rows: int, seed: int) -> ScoredRows:
    accepted = (np.random.default_rng(seed).random(rows) < truth).astype(np.uint8)
    before = np.full((rows, 1), champion, np.float32)
    after = np.full((rows, 1), challenger, np.float32)
    return ScoredRows(
        before, after, np.ones(rows, np.uint8), accepted, np.arange(rows), before, after
    )


@pytest.mark.parametrize("seed", range(20))
def test_m3_over_confident_challenger_is_never_promoted(seed: int) -> None:
    """Truth .98, champion .95, challenger .9999: worse by .074 nats a label."""
    assert -0.0745 < 0.98 * math.log(0.9999 / 0.95) + 0.02 * math.log(0.0001 / 0.05) < -0.073
    found = judge(gate(gamma=1), coins(0.98, 0.95, 0.9999, 20_000, seed), batch=50)
    assert found.status is GateStatus.REFUSED
    assert found.refusal is Refusal.NOT_BETTER


def test_better_challenger_is_promoted() -> None:
    rows = scored(heads_traffic(np.random.default_rng(1), 10_000), STALE, EXACT)
    found = judge(gate(), rows)
    assert found.status is GateStatus.PROMOTE
    assert found.refusal is None
    assert found.rows <= 3000
    assert found.log_evidence >= found.log_threshold == pytest.approx(math.log(32.9), abs=1e-3)
    assert found.conditional_gain is not None
    assert found.conditional_gain > 0.0
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["status"] == "promote"


def test_worse_challenger_is_refused_early() -> None:
    rows = scored(heads_traffic(np.random.default_rng(2), 20_000), EXACT, STALE)
    found = judge(gate(), rows)
    assert (found.status, found.refusal) == (GateStatus.REFUSED, Refusal.NOT_BETTER)
    assert found.rows < 5000
    assert "worse on" in found.reason


def test_served_projection_alone_may_win() -> None:
    """Same conditional model, better served survival."""
    traffic = heads_traffic(np.random.default_rng(3), 20_000)
    rows = scored(traffic, EXACT, EXACT)
    assert rows.champion_survival is not None
    worse = np.clip(rows.champion_survival**0.75, 0.0, 1.0).astype(np.float32)
    found = judge(gate(), replace(rows, champion_survival=worse))
    assert found.status is GateStatus.PROMOTE
    assert found.conditional_gain == 0.0


def test_only_rows_after_the_fit_are_scored() -> None:
    rows = scored(heads_traffic(np.random.default_rng(4), 1000), STALE, EXACT, first=500)
    chosen = gate(fitted_through=1199)
    step = chosen.update(chosen.start(), rows)
    assert (step.state.rows, step.state.skipped) == (300, 700)
    late = gate(fitted_through=10_000)
    step = late.update(late.start(), rows)
    assert step.decision.status is GateStatus.WAITING
    assert step.state.rows == 0
    assert step.decision.conditional_gain is None


def test_nothing_ever_came() -> None:
    chosen = gate(maximum_rows=1)
    assert chosen.decide(chosen.start()).status is GateStatus.WAITING


def test_given_up_after_maximum_rows() -> None:
    rows = scored(heads_traffic(np.random.default_rng(5), 2000), EXACT, (1.001, 0.0))
    found = judge(gate(maximum_rows=1500), rows)
    assert (found.status, found.refusal) == (GateStatus.REFUSED, Refusal.NOT_BETTER)
    assert found.rows == 1600
    assert "given up" in found.reason


def test_minimum_labels_at_changed_positions_only() -> None:
    traffic = heads_traffic(np.random.default_rng(6), 6000)
    trimmed = replace(
        traffic,
        verified=np.minimum(traffic.verified, 3),
        accepted=np.minimum(traffic.accepted, 3),
    )
    found = judge(gate(maximum_rows=5000), scored(trimmed, STALE, EXACT))
    assert found.refusal is Refusal.NOT_BETTER
    assert "position 4 changes on 0 scored labels" in found.reason
    untouched = (np.array([1.25] * 3 + [1.0] * 4), 0.0)
    assert judge(gate(), scored(trimmed, untouched, EXACT)).status is GateStatus.PROMOTE


def test_worse_in_one_segment_is_refused() -> None:
    traffic = heads_traffic(np.random.default_rng(7), 30_000)
    rare = np.arange(30_000) % 10 == 0
    names = np.where(rare, "code", "chat").astype(object)
    champion = np.where(rare, 1.0, 1.25)[:, None]
    challenger = np.where(rare, 1.6, 1.0)[:, None]
    rows = scored(traffic, (champion, 0.0), (challenger, 0.0), segment=names)
    # Promotion is put off far enough for the segment to be seen.
    found = judge(gate(minimum_labels=800), rows)
    assert (found.status, found.refusal) == (GateStatus.REFUSED, Refusal.WORSE_IN_SEGMENT)
    assert "segment code loses" in found.reason


def test_a_segment_that_may_lose_holds_promotion() -> None:
    state = replace(
        gate().start(),
        rows=5000,
        conditional_gain=50.0,
        survival_gain=50.0,
        crossed_row=400,
        labels=(5000,) * 7,
        log_kept=KEPT,
    )
    unsure = SegmentScore(1000, 0.0, 1000 * 0.3**2, state.log_worse)  # bound .0156 nats
    sure = SegmentScore(1000, 5.0, 1000 * 0.05**2, state.log_worse)
    few = replace(unsure, rows=900)
    chosen = gate(maximum_rows=6000)
    assert unsure.loss_bound() == pytest.approx(1.645 * 0.3 / math.sqrt(1000), rel=1e-3)
    held = chosen.decide(replace(state, segments={"code": unsure}))
    assert held.status is GateStatus.WAITING
    assert "segment code may lose 0.0156" in held.reason
    given_up = chosen.decide(replace(state, rows=6000, segments={"code": unsure}))
    assert given_up.refusal is Refusal.WORSE_IN_SEGMENT
    for fine in (sure, few):
        assert chosen.decide(replace(state, segments={"code": fine})).status is GateStatus.PROMOTE
    assert SegmentScore(0, 0.0, 0.0, ()).loss_bound() == math.inf


def test_segments_beyond_the_limit_are_scored_together() -> None:
    names = np.array([f"s{i % 5}" for i in range(1000)], dtype=object)
    rows = scored(heads_traffic(np.random.default_rng(8), 1000), STALE, EXACT, segment=names)
    chosen = gate(maximum_segments=3)
    segments = chosen.update(chosen.start(), rows).state.segments
    assert {name: score.rows for name, score in segments.items()} == {
        "s0": 200,
        "s1": 200,
        OTHER_SEGMENT: 600,
    }


def test_a_view_that_loses_blocks() -> None:
    state = replace(gate().start(), rows=100, conditional_gain=5.0, crossed_row=50)
    for view in ("survival_gain", "affine_gain"):
        lost = gate().decide(replace(state, log_kept=KEPT, **{view: -0.5}))
        assert lost.status is GateStatus.WAITING
        assert "one view loses" in lost.reason


def test_a_form_without_evidence_that_it_is_kept_holds_promotion() -> None:
    state = replace(gate().start(), rows=100, conditional_gain=5.0, crossed_row=50)
    for form, kept in (
        ("temperatures", (0.0,) * 4 + KEPT[4:]),
        ("slopes and", KEPT[:4] + (3,) * 4),
    ):
        held = gate().decide(replace(state, log_kept=kept))
        assert held.status is GateStatus.WAITING
        assert held.reason.startswith(form)
    assert gate().decide(replace(state, log_kept=KEPT)).status is GateStatus.PROMOTE


def test_an_affine_form_that_loses_is_refused_though_temperatures_gain() -> None:
    traffic = heads_traffic(np.random.default_rng(10), 20_000)
    rows = scored(traffic, STALE, EXACT, affine=(EXACT, STALE))
    assert judge(gate(), rows).refusal is Refusal.NOT_BETTER
    assert "slopes and intercepts" in judge(gate(), rows).reason
    # What loses nothing is promoted as soon as without it.
    alike = scored(traffic, STALE, EXACT, affine=(EXACT, EXACT))
    found = judge(gate(), alike)
    assert found.status is GateStatus.PROMOTE
    assert found.rows <= 3000
    assert found.affine_gain == 0.0


def test_an_affine_form_alone_may_win() -> None:
    traffic = heads_traffic(np.random.default_rng(11), 20_000)
    found = judge(gate(), scored(traffic, EXACT, EXACT, affine=((1.6, 0.0), EXACT)))
    assert found.status is GateStatus.PROMOTE
    assert (found.conditional_gain, found.survival_gain) == (0.0, 0.0)
    assert found.affine_gain is not None
    assert found.affine_gain > 0.0


def test_throughput_regret_blocks() -> None:
    state = replace(gate().start(), rows=100, conditional_gain=5.0, crossed_row=50, log_kept=KEPT)
    found = gate().decide(state, regret_increase=0.001)
    assert found.refusal is Refusal.NOT_BETTER
    assert "regret rises by 0.100%" in found.reason
    assert gate().decide(state, regret_increase=0.0004).status is GateStatus.PROMOTE


def test_state_survives_restart_and_batches_do_not_matter() -> None:
    names = np.array(["a", "b"] * 1500, dtype=object)
    rows = scored(heads_traffic(np.random.default_rng(9), 3000), STALE, EXACT, segment=names)
    chosen = gate()
    whole = chosen.update(chosen.start(), rows).state
    state = chosen.start()
    for start in range(0, 3000, 271):
        index = np.arange(3000)
        part = rows.select((index >= start) & (index < start + 271))
        state = chosen.update(state, part).state
        state = GateState.from_dict(json.loads(json.dumps(state.to_dict(), allow_nan=False)))
    assert state.crossed_row == whole.crossed_row is not None
    assert state.log_better == whole.log_better  # exact
    assert state.log_kept == whole.log_kept
    assert state.segments["a"].log_worse == whole.segments["a"].log_worse
    assert state.conditional_gain == pytest.approx(whole.conditional_gain)
    with pytest.raises(FormatError, match="gate state"):
        GateState.from_dict({"rows": 1})


def test_alpha_is_spent() -> None:
    spent = sum(challenger_alpha(0.05, j) for j in range(1, 100_000))
    assert 0.0499 < spent < 0.05
    for wrong in ((0.0, 1), (1.0, 1), (0.05, 0)):
        with pytest.raises(ConfigurationError):
            challenger_alpha(*wrong)


def test_inputs_are_checked() -> None:
    rows = scored(heads_traffic(np.random.default_rng(0), 10), EXACT, STALE)
    with pytest.raises(ConfigurationError, match="gamma"):
        gate(gamma=3).update(gate(gamma=3).start(), rows)
    bare = replace(rows, champion_survival=None, challenger_survival=None)
    with pytest.raises(ConfigurationError, match="survival"):
        gate().update(gate().start(), bare)
    alone = gate(survival=False)
    for given in (bare, rows):
        assert alone.update(alone.start(), given).decision.survival_gain is None
    for options in ({"ordinal": 0}, {"alpha": 1.0}, {"minimum_labels": 0}, {"maximum_segments": 0}):
        with pytest.raises(ConfigurationError):
            gate(**options)


# Promises, over many seeds -------------------------------------------------------------------


def crossed(chosen: PromotionGate, rows: ScoredRows) -> GateStatus:
    """As judged once all rows are in; crossings are found row by row whatever the batches are."""
    return judge(chosen, rows, batch=1000).status


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("temperatures", [(STALE, EXACT), (EXACT, EXACT)])
def test_a_worse_affine_form_is_promoted_at_most_five_per_cent(
    temperatures: tuple[Any, Any],
) -> None:
    """Slopes off by 15 % cost .003 nats a label, more than the margin; temperatures gain or stay.

    The conditional model is judged by itself: it stays as it is, or it gains.
    """
    runs, wrong = 200, 0
    for seed in range(runs):
        traffic = heads_traffic(np.random.default_rng([41, seed]), 4000)
        rows = scored(traffic, *temperatures, affine=(EXACT, (1.15, 0.0)))
        wrong += crossed(gate(), rows) is GateStatus.PROMOTE
    assert wrong / runs <= 0.05


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("fit_rows", [1000, 3000, 100_000])
def test_worse_challengers_are_promoted_at_most_five_per_cent(fit_rows: int) -> None:
    """Champion exact, challenger refitted on noise: worse by construction."""
    runs, wrong = 300, 0
    for seed in range(runs):
        rng = np.random.default_rng([fit_rows, seed])
        rows = scored(heads_traffic(rng, 3000, threshold=0.3), EXACT, fitted(rng, fit_rows))
        wrong += crossed(gate(), rows) is GateStatus.PROMOTE
    assert wrong / runs <= 0.05


@pytest.mark.slow
@pytest.mark.statistical
def test_a_day_of_hourly_challengers() -> None:
    """24 challengers that are no better, each on fresh rows: any promotion in ≤ 5 % of days."""
    days, wrong = 60, 0
    for day in range(days):
        rng = np.random.default_rng([24, day])
        for ordinal in range(1, 25):
            rows = scored(heads_traffic(rng, 500), EXACT, fitted(rng, 20_000))
            if crossed(gate(ordinal=ordinal), rows) is GateStatus.PROMOTE:
                wrong += 1
                break
    assert wrong / days <= 0.05


@pytest.mark.slow
@pytest.mark.statistical
def test_better_challengers_get_through_quickly() -> None:
    """Stale champion (T × 1.25), challenger fitted on 3,000 rows: median within 1,000 rows."""
    needed = []
    for seed in range(40):
        rng = np.random.default_rng([125, seed])
        rows = scored(heads_traffic(rng, 6000), STALE, fitted(rng, 3000))
        found = judge(gate(), rows, batch=50)
        needed.append(found.rows if found.status is GateStatus.PROMOTE else math.inf)
    assert float(np.median(needed)) <= 1000
    assert np.isfinite(needed).mean() >= 0.9
