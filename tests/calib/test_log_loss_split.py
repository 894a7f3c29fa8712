from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from calib.log_loss_split import split_log_loss
from calib.proper_scores import log_losses
from tests.calib.predictions import draw


def test_parts_add_up_to_the_mean_loss() -> None:
    sample = draw(np.random.default_rng(0), 2000, temperature=2.0)
    split = split_log_loss(sample.logits, sample.y)
    assert split.total == pytest.approx(log_losses(sample.logits, sample.y).mean(), rel=1e-12)
    assert split.calibration + split.refinement == pytest.approx(split.total, rel=1e-12)
    assert split.calibration > 0.02


def test_one_bin_shift_by_hand() -> None:
    """Few rows share one bin: 100 rows at logit 0 with 70 accepted move to logit(70.5 / 101)."""
    y = np.repeat([1.0, 0.0], [70, 30])
    share = 70.5 / 101  # one pseudo-row at .5
    best = -(70 * np.log(share) + 30 * np.log(1 - share)) / 100
    variance = 70 * (1 - share) ** 2 + 30 * share**2
    optimism = variance / (2 * 100 * share * (1 - share)) / 100
    split = split_log_loss(np.zeros(100), y)
    assert split.calibration == pytest.approx(np.log(2) - best - optimism, abs=1e-9)


def test_design_effect_takes_more_off() -> None:
    sample = draw(np.random.default_rng(1), 1000)
    plain = split_log_loss(sample.logits, sample.y)
    clustered = split_log_loss(sample.logits, sample.y, design_effect=3.0)
    assert clustered.total == plain.total
    # About ½ nat per bin and unit of design effect.
    gap = (plain.calibration - clustered.calibration) * 1000
    assert gap == pytest.approx(15.0, rel=0.1)


def test_scaling_all_weights_changes_nothing() -> None:
    sample = draw(np.random.default_rng(2), 500, shift=0.5)
    weights = np.random.default_rng(3).random(500)
    one, ten = (split_log_loss(sample.logits, sample.y, weights=w) for w in (weights, 10 * weights))
    assert one.total == pytest.approx(ten.total, rel=1e-12)
    assert one.calibration == pytest.approx(ten.calibration, rel=1e-6)
    ones = split_log_loss(sample.logits, sample.y, weights=np.ones(500))
    assert ones == split_log_loss(sample.logits, sample.y)


@pytest.mark.parametrize("logit", [0.0, 40.0, -40.0, 1e5, 3e38])
@pytest.mark.parametrize("labels", [[0.0], [1.0], [0.0, 1.0, 0.0], [0.5, 0.5]])
def test_extreme_inputs_stay_finite(logit: float, labels: list[float]) -> None:
    split = split_log_loss(np.full(len(labels), logit), np.array(labels))
    assert np.isfinite([split.total, split.calibration, split.refinement]).all()


def test_constant_shift_far_from_the_data_is_recovered() -> None:
    sample = draw(np.random.default_rng(4), 5000)
    split = split_log_loss(sample.logits + 40.0, sample.y)
    assert split.refinement == pytest.approx(log_losses(sample.logits, sample.y).mean(), abs=5e-3)


@pytest.mark.statistical
@pytest.mark.parametrize("rows", [100, 300, 1000])
@pytest.mark.parametrize("options", [{}, {"centre": 3.0}, {"soft": True}])
def test_perfect_model_has_nothing_to_gain(rows: int, options: dict[str, float]) -> None:
    rng = np.random.default_rng(7)
    gains = []
    for _ in range(200):
        sample = draw(rng, rows, **options)  # type: ignore[arg-type]
        gains.append(split_log_loss(sample.logits, sample.y).calibration)
    assert abs(np.mean(gains)) < 3 * np.std(gains) / np.sqrt(200) + 1e-4


@pytest.mark.statistical
@pytest.mark.parametrize("temperature", [1.25, 1.6])
def test_wrong_temperature_costs_what_it_costs(temperature: float) -> None:
    rng = np.random.default_rng(8)
    gains, truth = [], []
    for _ in range(200):
        sample = draw(rng, 1000, temperature=temperature)
        mean = expit(sample.logits / temperature)
        best = log_losses(sample.logits / temperature, mean)
        truth.append((log_losses(sample.logits, mean) - best).mean())
        gains.append(split_log_loss(sample.logits, sample.y).calibration)
    error = np.std(gains) / np.sqrt(200)
    assert np.mean(gains) == pytest.approx(np.mean(truth), rel=0.04, abs=3 * error)
