from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from calib.conditional_likelihood import ConditionalLikelihood
from calib.errors import ConfigurationError, RecordError
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.statuses import PositionStatus, ServingStatus
from calib.survival_model import SurvivalModel, fit_survival_model, pair_folds
from calib.survival_projection import ProjectionRules, project_survival
from tests.calib.test_survival_model import TOKENS, two_token_model
from tests.support.leaky_generator import LeakyBlocks, simulate_leaky, survival_ece, trimmed_lengths

LAX = ProjectionRules(minimum_rows=1)


def model_of(blocks: LeakyBlocks, verified: Any = None) -> SurvivalModel:
    records = blocks.records(verified)
    conditional = ConditionalLikelihood("affine").fit_records(records)
    return fit_survival_model(conditional, pair_folds(records))


def test_m1_a_gap_above_the_product_is_no_fit() -> None:
    logits = np.repeat(TOKENS, 50, axis=0)
    target = two_token_model().survival(logits)
    projection = project_survival(logits, target, rules=LAX)
    assert projection.position_statuses == (
        PositionStatus.OK,
        PositionStatus.TEMPERATURE_CANNOT_FIT,
    )
    assert projection.affine_statuses[1] is PositionStatus.TEMPERATURE_CANNOT_FIT
    assert projection.affine_fits[1].slope is None
    assert projection.temperatures[0] == pytest.approx(1.0, abs=1e-3)
    calibration = projection.calibration()
    assert calibration.status is ServingStatus.PARTIAL
    assert calibration.temperatures[1] == 1.0
    # What the first position knows is served; the second is as its temperature has it.
    assert calibration.slopes == pytest.approx((1.0, 1.0), abs=1e-3)
    assert calibration.intercepts == pytest.approx((0.0, 0.0), abs=1e-3)
    assert (calibration.slopes[1], calibration.intercepts[1]) == (1.0, 0.0)
    # The best factors, 1 on A and .0333 on B, stop at a mean of .31 where survival is .46.
    best = 0.6 * np.minimum(1.0, target[:, 1] / 0.6)
    assert best.mean() == pytest.approx(0.31, abs=1e-5)
    residual = projection.position_fits[1].residual
    assert residual is not None
    assert residual >= 0.15 - 1e-6  # what even those factors leave


def test_what_a_model_imputes_without_two_classes_gives_no_number() -> None:
    logits = np.random.default_rng(0).normal(1.0, 2.0, (4000, 2)).astype(np.float32)
    target = np.cumprod(expit(logits / np.array([1.5, 0.8])), axis=1)
    rules = ProjectionRules(parent_temperatures=(1.2, 1.3))
    found = project_survival(logits, target, one_class=[False, True], rules=rules)
    assert found.position_statuses == (PositionStatus.OK, PositionStatus.ONE_CLASS)
    assert found.affine_statuses == (PositionStatus.OK, PositionStatus.ONE_CLASS)
    assert found.position_fits[1].reason == "All 4000 labels are the same."
    assert found.temperatures == (pytest.approx(1.5, rel=0.01), 1.3)
    with pytest.raises(RecordError, match="one_class"):
        project_survival(logits, target, one_class=[True])


def test_exact_temperatures_come_back() -> None:
    draw = np.random.default_rng(0)
    logits = draw.normal(1.0, 2.0, (4000, 3)).astype(np.float32)
    target = np.cumprod(expit(logits / np.array([1.5, 0.8, 2.0])), axis=1)
    projection = project_survival(logits, target)
    assert projection.temperatures == pytest.approx([1.5, 0.8, 2.0], rel=0.01)
    assert projection.imputed
    assert projection.calibration().status is ServingStatus.FITTED
    assert projection.calibration().evidence["imputed_survival"] is True


def test_exact_affine_numbers_come_back() -> None:
    draw = np.random.default_rng(1)
    logits = draw.normal(1.0, 2.0, (4000, 3)).astype(np.float32)
    slopes, intercepts = np.array([0.7, 1.2, 0.5]), np.array([0.3, -0.4, 0.2])
    target = np.cumprod(expit(logits * slopes + intercepts), axis=1)
    projection = project_survival(logits, target)
    assert projection.slopes == pytest.approx(slopes, rel=1e-3)
    assert projection.intercepts == pytest.approx(intercepts, abs=1e-3)
    calibration = projection.calibration()
    assert calibration.slopes == projection.slopes
    assert calibration.survival(logits, form="affine") == pytest.approx(target, abs=1e-3)


def test_hard_labels_make_it_plain_sequential_scaling() -> None:
    blocks = simulate_leaky(5000, 2, partial=0.09)
    projection = project_survival(blocks.logits, blocks.prefix_mask)
    plain = SequentialTemperatureScaling().fit(blocks.logits, blocks.accepted)
    assert projection.temperatures == tuple(plain.temperatures_.tolist())
    assert not projection.imputed


@pytest.mark.parametrize("partial", [0.0, 0.18])
def test_imputed_agrees_with_plain_sequential_scaling_up_to_noise(partial: float) -> None:
    """Fully verified, 10k rows: log T of the hard-label search scatters by .09 alone."""
    blocks = simulate_leaky(10_000, 4, partial=partial)
    model = model_of(blocks)
    projection = project_survival(blocks.logits, model.survival(blocks.logits))
    plain = SequentialTemperatureScaling().fit(blocks.logits, blocks.accepted)
    ratio = np.log(np.array(projection.temperatures) / plain.temperatures_)
    assert np.abs(ratio).mean() < 0.12
    assert np.abs(ratio).max() < 0.35


def test_a_mean_mended_by_flattening_the_ranking_is_no_fit() -> None:
    """In one bin T = 2.76 makes the mean right; it costs .479 nats where T = 1 costs .468."""
    logits = np.repeat(np.float32([[-1.0], [-4.0]]), 200, axis=0)
    target = np.repeat([[0.6], [0.001]], 200, axis=0)
    rules = ProjectionRules(minimum_rows=1, n_bins=1)
    projection = project_survival(logits, target, rules=rules)
    assert projection.position_statuses == (PositionStatus.TEMPERATURE_CANNOT_FIT,)
    assert projection.temperatures == (1.0,)
    fit = projection.position_fits[0]
    assert fit.reason is not None
    found = re.search(r"temperature, ([\d.]+),.* by ([\d.]+) nats over 1: it flatt", fit.reason)
    assert found is not None
    temperature, rise = map(float, found.groups())
    right = np.array([0.6, 0.001])
    claimed = expit(np.array([-1.0, -4.0]) / [[temperature], [1.0]])
    assert claimed[0].mean() == pytest.approx(right.mean(), abs=1e-4)
    loss = -(right * np.log(claimed) + (1 - right) * np.log1p(-claimed)).mean(axis=1)
    assert rise == pytest.approx(loss[0] - loss[1], abs=5e-5)
    # Slope and intercept need not choose between the two.
    assert projection.affine_statuses == (PositionStatus.OK,)


def test_rows_behind_the_target_decide_publication() -> None:
    blocks = simulate_leaky(1000, 0)
    target = np.cumprod(expit(blocks.logits / 1.4), axis=1)
    behind = [5000, 4000, 3000, 2000, 999, 500, 100]
    projection = project_survival(blocks.logits, target, evidence_rows=behind)
    statuses = [str(status) for status in projection.position_statuses]
    assert statuses == ["ok"] * 4 + ["insufficient"] * 3
    rules = ProjectionRules(parent_temperatures=[1.1] * 7)
    served = project_survival(blocks.logits, target, evidence_rows=behind, rules=rules)
    assert served.calibration().temperatures[4:] == (1.1,) * 3
    assert served.temperatures == projection.temperatures
    found = served.calibration()
    assert found.slopes == pytest.approx([1 / 1.4] * 4 + [1 / 1.1] * 3, rel=1e-3)
    assert found.intercepts is not None
    assert found.intercepts[4:] == (0.0,) * 3


def test_without_a_first_affine_position_none_is_served() -> None:
    blocks = simulate_leaky(1000, 0)
    target = np.cumprod(expit(blocks.logits / 1.4), axis=1)
    behind = [999, 5000, 5000, 5000, 5000, 5000, 5000]
    calibration = project_survival(blocks.logits, target, evidence_rows=behind).calibration()
    assert calibration.slopes is None
    assert calibration.position_statuses[1] is PositionStatus.OK


def test_one_class_target() -> None:
    projection = project_survival([[1.0], [2.0]], [[1.0], [1.0]], rules=LAX)
    assert projection.position_statuses == (PositionStatus.ONE_CLASS,)
    assert projection.affine_statuses == (PositionStatus.ONE_CLASS,)


def test_wrong_input_is_named() -> None:
    logits = [[1.0, 2.0]]
    for target in ([[1.0]], [[1.0, np.nan]], [[1.0, 1.5]]):
        with pytest.raises(RecordError, match="target"):
            project_survival(logits, target)
    with pytest.raises(RecordError, match="evidence_rows"):
        project_survival(logits, [[1.0, 0.5]], evidence_rows=[1])
    with pytest.raises(ConfigurationError):
        project_survival(logits, [[1.0, 0.5]], rules=ProjectionRules(refinements=-1))


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize(("partial", "limit"), [(0.0, 0.005), (0.18, 0.01)])
def test_served_numbers_on_trimmed_logs(partial: float, limit: float) -> None:
    """R = 128: what an engine applies stays within .005 without leak and .01 with it."""
    test = simulate_leaky(40_000, seed=4000, partial=partial)
    errors = []
    for seed in range(3):
        blocks = simulate_leaky(102_400, seed, partial=partial)
        model = model_of(blocks, trimmed_lengths(blocks.logits))
        sample = blocks.logits[:20_000]
        projection = project_survival(sample, model.survival(sample), evidence_rows=model.rows)
        calibration = projection.calibration()
        affine = test.logits * np.array(projection.slopes) + np.array(projection.intercepts)
        served = [calibration.survival(test.logits), np.cumprod(expit(affine), axis=1)]
        errors.append([survival_ece(predicted, test).mean() for predicted in served])
    assert (np.mean(errors, axis=0) <= limit).all()
