from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import InvalidInputError, NotFittedError, RecordError
from calib.evaluation import evaluate
from calib.pair_sketch import PairSketch
from calib.records import AcceptanceRecords
from calib.survival_model import Hazard, SurvivalModel, fit_survival_model, pair_folds
from tests.support.leaky_generator import (
    LeakyBlocks,
    simulate_leaky,
    survival_ece,
    trimmed_lengths,
)

TOKENS = np.array([[logit(0.6), logit(0.9)], [logit(0.6), logit(0.1)]])  # A, B


def two_token_records() -> AcceptanceRecords:
    """q = (.5, .5), p = (.9, .1), c_2 = (.9, .1), in exact proportions of 100 rows."""
    accepted = [2] * 45 + [1] * 5 + [2] + [1] * 9 + [0] * 40
    columns = {
        "confidence_logits": np.repeat(TOKENS, 50, axis=0),
        "verified": [2] * 100,
        "accepted": accepted,
    }
    return AcceptanceRecords.from_columns(2, columns)


def two_token_model() -> SurvivalModel:
    records = two_token_records()
    conditional = ConditionalLikelihood(ridge=0.0, minimum_rows=1).fit_records(records)
    return fit_survival_model(conditional, [PairSketch.from_records(records)], ridge=0.0)


def test_m1_two_tokens() -> None:
    model = two_token_model()
    assert model.conditional(TOKENS)[:, 0] == pytest.approx([0.6, 0.6], abs=1e-5)
    assert model.conditional(TOKENS)[:, 1] == pytest.approx([0.9, 0.1], abs=1e-5)
    assert model.hazard(TOKENS)[:, 0] == pytest.approx([1.0, 0.2], abs=1e-4)
    survival = model.survival(TOKENS)
    assert survival[:, 1] == pytest.approx([0.9, 0.02], abs=1e-5)
    assert survival[:, 1].mean() == pytest.approx(0.46, abs=1e-5)
    product = np.cumprod(model.conditional(TOKENS), axis=1)
    assert product[:, 1].mean() == pytest.approx(0.30, abs=1e-5)
    assert model.ranking(TOKENS)[1] == pytest.approx([0.6, 0.02], abs=1e-5)
    assert not model.is_product
    assert model.rows == (100, 60)


@pytest.mark.parametrize(("score", "chance"), [("survival", 0.95), ("ranking", 0.9)])
def test_m2_only_the_running_minimum_is_lossless(score: str, chance: float) -> None:
    """One slot, another candidate at .7: how often is A emitted, where the target says .9?"""
    scores = getattr(two_token_model(), score)(TOKENS)
    q, p = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    emitted = 0.0
    for token, verified in itertools.product((0, 1), (True, False)):
        if verified != bool(scores[token].max() > 0.7):
            continue
        # Verified: accepted with min(1, p/q), else a residual sample (only A has a residual).
        # Not verified: the target samples from p.
        accept = min(1.0, p[token] / q[token])
        emits = (accept * (token == 0) + (1.0 - accept)) if verified else p[0]
        emitted += q[token] * emits
    assert emitted == pytest.approx(chance)


def test_survival_by_hand() -> None:
    model = SurvivalModel(
        slopes=(1.0, 0.5),
        intercepts=(0.0, -1.0),
        hazards=(Hazard(1, 0.25, 1.0, 0.5, 10.0),),
        rows=(10, 5),
    )
    logits = np.array([[1.0, -2.0]])
    assert model.conditional(logits)[0] == pytest.approx([expit(1.0), expit(-2.0)])
    assert model.hazard(logits)[0] == pytest.approx([expit(0.25)])
    assert model.survival(logits)[0] == pytest.approx([expit(1.0), expit(0.25) * expit(-2.0)])
    assert model.to_dict()["hazards"][0]["following"] == 0.5


def test_column_k_reads_nothing_after_k() -> None:
    model = fit(simulate_leaky(4000, 0, partial=0.2))
    logits = np.random.default_rng(0).normal(size=(50, 7))
    changed = logits.copy()
    changed[:, 4:] += 3.0
    assert np.array_equal(model.survival(logits)[:, :4], model.survival(changed)[:, :4])


def fit(blocks: LeakyBlocks, verified: Any = None, folds: int = 2) -> SurvivalModel:
    records = blocks.records(verified)
    conditional = ConditionalLikelihood("affine").fit_records(records)
    return fit_survival_model(conditional, pair_folds(records, folds=folds))


def product_of(model: SurvivalModel, logits: np.ndarray) -> np.ndarray:
    return np.asarray(np.cumprod(model.conditional(logits), axis=1))


@pytest.mark.parametrize("folds", [1, 2, 5])
def test_a_leak_is_used_and_its_absence_left_alone(folds: int) -> None:
    leaky = fit(simulate_leaky(20_000, 3, partial=0.18), folds=folds)
    assert all(hazard.uses_next for hazard in leaky.hazards)
    assert all(0.15 < hazard.following < 0.4 for hazard in leaky.hazards)
    for hazard in leaky.hazards:
        assert hazard.following_error is not None
        assert hazard.following > 4 * hazard.following_error
    quiet = fit(simulate_leaky(20_000, 3), folds=folds)
    assert sum(hazard.uses_next for hazard in quiet.hazards) <= 2
    assert all(abs(hazard.following) < 0.05 for hazard in quiet.hazards)


def test_without_the_next_logit_it_is_the_product() -> None:
    blocks = simulate_leaky(500, 0)
    records = blocks.records()
    conditional = ConditionalLikelihood().fit_records(records)
    model = fit_survival_model(conditional, [PairSketch.empty(7)])
    assert model.is_product
    assert model.survival(blocks.logits) == pytest.approx(product_of(model, blocks.logits))
    assert model.survival(blocks.logits) == pytest.approx(
        conditional.survival(blocks.logits), abs=1e-6
    )


def test_cells_give_the_hazards_of_the_rows() -> None:
    blocks = simulate_leaky(30_000, 5, partial=0.18)
    records = blocks.records()
    conditional = ConditionalLikelihood("affine").fit_records(records)
    model = fit_survival_model(conditional, [PairSketch.from_records(records)], ridge=0.0)
    features = np.column_stack([np.ones(30_000), blocks.logits[:, :2]]).astype(np.float64)
    label = (blocks.accepted >= 1).astype(np.float64)
    theta = np.zeros(3)
    for _ in range(12):
        p = expit(features @ theta)
        curvature = features.T @ (features * (p * (1 - p))[:, None])
        theta = theta + np.linalg.solve(curvature, features.T @ (label - p))
    hazard = model.hazards[0]
    error = hazard.following_error
    assert error is not None
    found = [hazard.intercept, hazard.slope, hazard.following]
    assert np.abs(np.array(found) - theta).max() < 0.25 * error


def test_folds_keep_prompts_whole_and_merge_to_everything() -> None:
    blocks = simulate_leaky(400, 1)
    columns = {
        "confidence_logits": blocks.logits,
        "verified": np.full(400, 7),
        "accepted": blocks.accepted,
        "prompt": [str(row // 40) for row in range(400)],
    }
    records = AcceptanceRecords.from_columns(7, columns)
    halves = pair_folds(records)
    assert halves[0] + halves[1] == PairSketch.from_records(records)
    assert [int(half.rows[0]) for half in halves] == [200, 200]


def test_it_can_be_evaluated() -> None:
    blocks = simulate_leaky(3000, 2, partial=0.18)
    report = evaluate(blocks.records(), fit(blocks))
    assert report.survival.positions[6].ece is not None


def test_wrong_use_is_named() -> None:
    conditional = ConditionalLikelihood()
    with pytest.raises(NotFittedError):
        fit_survival_model(conditional, [PairSketch.empty(7)])
    conditional.fit_records(simulate_leaky(300, 0).records())
    for pairs in ([PairSketch.empty(6)], []):
        with pytest.raises(InvalidInputError):
            fit_survival_model(conditional, pairs)
    with pytest.raises(RecordError):
        two_token_model().survival([[1.0]])


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(("partial", "least_gain"), [(0.0, 0.8), (0.09, 2.0), (0.18, 3.5)])
def test_trimmed_logs_with_leak(partial: float, least_gain: float) -> None:
    """Against exact survival, the product is off by up to .025 and the model by a few .001."""
    test = simulate_leaky(50_000, seed=3000, partial=partial)
    errors = []
    for seed in range(4):
        blocks = simulate_leaky(102_400, seed, partial=partial)
        model = fit(blocks, trimmed_lengths(blocks.logits))
        errors.append(
            [
                survival_ece(predicted, test).mean()
                for predicted in (model.survival(test.logits), product_of(model, test.logits))
            ]
        )
    hazards, product = np.mean(errors, axis=0)
    assert hazards <= 0.006
    assert product >= least_gain * hazards


def test_sketches_of_one_fold_are_held_out_together() -> None:
    records = simulate_leaky(3000, 4, partial=0.18).records()
    conditional = ConditionalLikelihood("affine").fit_records(records)
    quarters = [
        PairSketch.from_records(records.select(slice(start, start + 750)))
        for start in range(0, 3000, 750)
    ]
    halves = [quarters[0] + quarters[2], quarters[1] + quarters[3]]
    together = fit_survival_model(conditional, quarters, folds=[0, 1, 0, 1])
    assert together == fit_survival_model(conditional, halves)
    assert together != fit_survival_model(conditional, quarters)  # judged on more rows
    one = fit_survival_model(conditional, quarters, folds=[5, 5, 5, 5])
    assert one == fit_survival_model(conditional, [halves[0] + halves[1]])
    with pytest.raises(InvalidInputError, match="folds"):
        fit_survival_model(conditional, quarters, folds=[0, 1])
