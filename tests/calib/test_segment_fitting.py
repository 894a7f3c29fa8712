from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from calib.conditional_likelihood import ConditionalLikelihood
from calib.cost_table_shapes import analytic_cost_table
from calib.errors import ConfigurationError, FitRefusedError
from calib.records import AcceptanceRecords
from calib.regret import ThroughputReplay
from calib.replay_outcomes import ExpectedOutcomes
from calib.segment_fitting import STRENGTHS, fit_segments
from calib.segment_model import SegmentModel
from calib.segment_ridge import Strengths
from calib.segment_sketches import SegmentSketches, tenant_parts
from calib.segment_tags import POOL, SegmentKey, SegmentLevels
from tests.support.leaky_generator import trimmed_lengths
from tests.support.segment_generator import (
    NAMES,
    SHARES,
    SegmentedBlocks,
    segment_errors,
    simulate_segments,
)
from tests.support.telemetry import synthetic_records

DOMAIN = SegmentLevels((("domain",),))
THIN = [index for index, share in enumerate(SHARES) if share <= 0.05]


def fitted(records: AcceptanceRecords, **options: Any) -> SegmentModel:
    options = {"levels": DOMAIN, **options}
    return fit_segments(SegmentSketches.from_records(records, levels=options["levels"]), **options)


def pool_only(model: SegmentModel) -> SegmentModel:
    return replace(model, segments={POOL: model.segments[POOL]})


def test_the_pool_is_the_conditional_likelihood() -> None:
    records = synthetic_records(4000)
    model = fitted(records)
    alone = ConditionalLikelihood("affine").fit_records(records)
    assert model.segments[POOL].slopes == pytest.approx(alone.slopes_, rel=1e-5)
    assert model.segments[POOL].intercepts == pytest.approx(alone.intercepts_, rel=1e-4, abs=1e-6)
    assert [level.tags for level in model.evidence] == [("domain",)]
    assert set(model.seen["domain"]) == {"chat", "code", "math"}


def test_one_strength_equals_a_general_optimiser_on_the_rows() -> None:
    """λ₁ = 20, λ₂ = ∞: one factor of all slopes and one shift of all intercepts."""
    traffic = simulate_segments(3000, seed=3)
    records = traffic.records()
    model = fitted(records, strengths=[Strengths(20.0, math.inf)])
    pool, segment = model.segments[POOL], SegmentKey.of({"domain": NAMES[3]})
    rows = records.select(traffic.segment == 3)
    known = np.arange(7) <= rows.accepted[:, None].astype(int)
    label = (np.arange(7) < rows.accepted[:, None].astype(int))[known].astype(float)
    logit = rows.confidence_logits.astype(float)
    slopes, intercepts = np.array(pool.slopes), np.array(pool.intercepts)

    def objective(shift: NDArray[np.float64]) -> float:
        odds = ((1.0 + shift[0]) * logit * slopes + intercepts + shift[1])[known]
        return float((np.logaddexp(0.0, odds) - label * odds).sum() + 10.0 * (shift @ shift))

    found = minimize(objective, np.zeros(2), method="BFGS").x
    fit = model.segments[segment]
    wanted = (1.0 + found[0]) * slopes
    assert fit.slopes == pytest.approx(wanted, abs=2e-3)
    assert fit.intercepts == pytest.approx(intercepts + found[1], abs=2e-3)


def test_r26_split_order_and_place_of_rows_do_not_matter() -> None:
    records = simulate_segments(2000, seed=1).records()
    order = np.random.default_rng(0).permutation(2000)
    parts = [
        SegmentSketches.from_records(records.select(order[i::3]), levels=DOMAIN) for i in range(3)
    ]
    whole = fitted(records)
    assert dict(fit_segments(parts[::-1], levels=DOMAIN).segments) == dict(whole.segments)
    assert dict(fitted(records.select(order)).segments) == dict(whole.segments)


def test_children_start_from_their_parents() -> None:
    """No rows of (0.0, code) in a fold or at all: finer segments exist only where rows do."""
    levels = SegmentLevels((("domain",), ("sampling_temperature", "domain")))
    records = synthetic_records(6000)
    model = fitted(records, levels=levels)
    fine = SegmentKey.of({"domain": "code", "sampling_temperature": "0"})
    assert model.segments[fine].parent == SegmentKey.of({"domain": "code"})
    assert model.segments[SegmentKey.of({"domain": "code"})].parent == POOL
    # Pulled with all force, a child is its parent to the last digit.
    tied = fitted(records, levels=levels, strengths=[Strengths(math.inf, math.inf)])
    pool = tied.segments[POOL]
    assert {fit.slopes for fit in tied.segments.values()} == {pool.slopes}


def test_a_segment_with_all_the_rows_of_its_parent_inherits_it() -> None:
    records = simulate_segments(1500, seed=5).records()
    columns = {**records.columns(), "adapter": np.array(["x"] * 1500, dtype=object)}
    tagged = AcceptanceRecords.from_columns(7, columns)
    model = fitted(tagged, levels=SegmentLevels((("adapter",), ("domain",), ("domain", "adapter"))))
    alone = model.segments[SegmentKey.of({"adapter": "x"})]
    assert alone.slopes == model.segments[POOL].slopes
    law = model.segments[SegmentKey.of({"domain": "law"})]
    twin = model.segments[SegmentKey.of({"domain": "law", "adapter": "x"})]
    assert (twin.slopes, twin.intercepts) == (law.slopes, law.intercepts)
    assert law.slopes != model.segments[POOL].slopes


def test_the_largest_segments_are_kept() -> None:
    model = fitted(simulate_segments(3000, seed=2).records(), maximum_segments=3)
    assert set(model.segments) == {POOL, *(SegmentKey.of({"domain": n}) for n in NAMES[:3])}
    assert model.resolve(SegmentKey.of({"domain": "law"})).key == POOL


def test_r53_a_capped_tenant_counts_as_its_weight() -> None:
    """One tenant sends 95 % of the rows, with shifted logits: capped at half, the pool's intercept
    lies where half of the weight pulls, not where 95 % do."""
    traffic = simulate_segments(4000, seed=4, spread=0.0)
    logits = traffic.blocks.logits.copy()
    big = np.arange(4000) < 3800
    logits[big] += 1.5
    columns = {
        "confidence_logits": logits,
        "verified": np.full(4000, 7),
        "accepted": traffic.blocks.accepted,
        "domain": traffic.domain,
        "tenant": np.where(big, "big", "small").astype(object),
    }
    records = AcceptanceRecords.from_columns(7, columns)
    parts, capped = tenant_parts(records, 0.5)
    weights = [weight for weight, _ in parts]
    sketches = [SegmentSketches.from_records(rows, levels=DOMAIN) for _, rows in parts]
    model = fit_segments(sketches, weights=weights, levels=DOMAIN)
    small, all_rows = fitted(records.select(~big)), fitted(records)
    first = [m.segments[POOL].intercepts[0] for m in (all_rows, model, small)]
    assert first[0] < first[1] < first[2]
    assert capped.shares["big"] == pytest.approx(0.95)


def test_labels_of_one_class_or_few_rows_still_give_numbers() -> None:
    records = simulate_segments(40, seed=6).records()
    model = fitted(records)
    for fit in model.segments.values():
        assert np.isfinite([fit.slopes, fit.intercepts]).all()


def test_no_rows_are_refused_and_wrong_options_named() -> None:
    records = synthetic_records(200)
    with pytest.raises(FitRefusedError, match="no_rows"):
        fitted(records.select(slice(0, 0)))
    with pytest.raises(ConfigurationError, match="levels"):
        fit_segments(
            SegmentSketches.from_records(records, levels=DOMAIN),
            levels=SegmentLevels((("adapter",),)),
        )
    with pytest.raises(ConfigurationError, match="pool"):
        fitted(records, pool=ConditionalLikelihood("temperature"))
    for strengths in ([], [Strengths(0.0, 1.0)]):
        with pytest.raises(ConfigurationError, match="strengths"):
            fitted(records, strengths=strengths)
    with pytest.raises(ConfigurationError, match="maximum_segments"):
        fitted(records, maximum_segments=-1)


def cross_entropy(
    model: SegmentModel, test: SegmentedBlocks, records: AcceptanceRecords
) -> NDArray[np.float64]:
    """[segments] expected log loss per observed label under the truth, nats."""
    survival = test.blocks.survival
    reached = np.hstack([np.ones((len(survival), 1)), survival[:, :-1]])
    truth = survival / reached
    predicted = np.clip(model.conditional(records).astype(float), 1e-7, 1 - 1e-7)
    loss = -reached * (truth * np.log(predicted) + (1.0 - truth) * np.log1p(-predicted))
    each = range(len(SHARES))
    sums = [
        np.bincount(test.segment, values.sum(axis=1), len(SHARES)) for values in (loss, reached)
    ]
    return np.array([sums[0][index] / sums[1][index] for index in each])


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(("spread", "gain"), [(1.0, 0.001), (0.0, -0.0003)])
def test_thin_segments_are_never_worse_than_the_pool(spread: float, gain: float) -> None:
    """Segments of 5, 3 and 1 % of 3,000 rows (150, 90, 30), 24 logs, exact held-out loss.

    Tolerance: .0005 nats a label on average, where a pool that is off by .02 everywhere would lose
    .001; and .02 in the worst segment of the worst log. All segments together gain what the pool
    loses on those that differ, and next to nothing is paid where all are alike.
    """
    test = simulate_segments(15_000, seed=999, spread=spread)
    records = test.records()
    saved = []
    for seed in range(24):
        model = fitted(simulate_segments(3000, seed=seed, spread=spread).records())
        pooled = cross_entropy(pool_only(model), test, records)
        saved.append(pooled - cross_entropy(model, test, records))
    thin = np.array(saved)[:, THIN]
    assert thin.mean() > -0.0005
    assert thin.min() > -0.02
    assert np.mean(saved) >= gain


KNEE = analytic_cost_table("smooth", max_batch_tokens=2048)


@pytest.mark.slow
@pytest.mark.statistical
def test_eight_segments_at_3000_rows() -> None:
    """Mean-segment ECE at most .015 and regret at most .1 %, over 20 logs; pooled affine .039.

    Without a prior on strengths, and with slopes that move by amounts, it is .0152.
    """
    test = simulate_segments(38_400, seed=999)
    records = test.records()
    outcomes = ExpectedOutcomes(test.blocks.survival)
    replay = ThroughputReplay.of(records, KNEE, batch_size=128, outcomes=outcomes)
    oracle = replay.theta(test.blocks.survival)
    errors, pooled, losses = [], [], []
    for seed in range(20):
        model = fitted(simulate_segments(3000, seed=seed).records())
        survival = model.survival(records)
        errors.append(segment_errors(survival, test).mean())
        pooled.append(segment_errors(pool_only(model).survival(records), test).mean())
        losses.append(replay.regret(survival, oracle, replicates=1).loss)
    assert np.mean(errors) <= 0.015
    assert np.mean(losses) <= 0.001
    assert 0.036 < np.mean(pooled) < 0.042


@pytest.mark.statistical
def test_trimmed_telemetry_fits_as_well() -> None:
    """Trimmed at R = 128 on raw confidence: no bias, only fewer labels."""
    test = simulate_segments(20_000, seed=999)
    errors = []
    for seed in range(4):
        traffic = simulate_segments(6000, seed=seed)
        model = fitted(traffic.records(trimmed_lengths(traffic.blocks.logits)))
        errors.append(segment_errors(model.survival(test.records()), test).mean())
    assert np.mean(errors) < 0.02


def test_default_strengths_allow_a_segment_to_be_its_parent() -> None:
    assert Strengths(math.inf, math.inf) in STRENGTHS
