from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from calib.conditional_temperature import ConditionalTemperature, fit_temperature
from calib.errors import ConfigurationError, FitRefusedError, NotFittedError, RecordError
from calib.labels import conditional_labels
from calib.records import AcceptanceRecords
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.statuses import PositionStatus, Refusal, ServingStatus
from tests.calib.blocks import TRUE_TEMPERATURES, simulate

R21_LOGITS = np.array([2, -1, 0.5, -2, 1, -0.5])
R21_LABELS = np.array([1, 0, 0, 0, 1, 1])
WIDE = (1e-6, 1e6)


def log_loss(temperature: float, z: Any, y: Any) -> float:
    u = np.asarray(z, dtype=np.float64) / temperature
    return float(np.sum(np.logaddexp(0.0, u) - np.asarray(y) * u))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5, 1e-5])
def test_r21_relative_search_at_any_scale(scale: float) -> None:
    root = fit_temperature(R21_LOGITS * scale, R21_LABELS, bounds=WIDE)
    assert root.temperature == pytest.approx(0.74013 * scale, rel=1e-5)
    assert root.at_bound is None
    assert root.steps < 30


def test_r21_rounds_to_the_published_values() -> None:
    found = [fit_temperature(R21_LOGITS * s, R21_LABELS, bounds=WIDE) for s in (1, 1e3, 1e5)]
    assert [round(found[0].temperature, 4), round(found[1].temperature, 1)] == [0.7401, 740.1]
    assert round(found[2].temperature) == 74013


def test_r21_beyond_the_bounds_is_at_the_bound_and_the_order_stays() -> None:
    root = fit_temperature(R21_LOGITS * 1e5, R21_LABELS)
    assert (root.temperature, root.at_bound) == (20.0, "upper")
    z = (R21_LOGITS * 1e3).astype(np.float32)[:, None]
    fitted = ConditionalTemperature(bounds=WIDE, minimum_rows=0).fit(z, R21_LABELS)
    assert np.array_equal(np.argsort(fitted.transform(z)[:, 0]), np.argsort(z[:, 0]))


def test_r20_no_finite_optimum() -> None:
    root = fit_temperature([2, 2, -2, -2], [1, 0, 1, 0])
    assert (root.temperature, root.at_bound) == (20.0, "upper")
    z = np.array([[2.0], [2.0], [-2.0], [-2.0]])
    fitted = ConditionalTemperature().fit(z, [1, 0, 1, 0])
    assert fitted.position_statuses_ == (PositionStatus.AT_BOUND,)
    assert fitted.position_fits_[0].temperature is None
    assert fitted.calibration().temperatures == (1.0,)


def test_separable_labels_end_at_the_lower_bound() -> None:
    assert fit_temperature([2.0, -2.0], [1, 0]).at_bound == "lower"


def test_r22_temperature_alone_cannot_fix_a_rate_below_one_half() -> None:
    fitted = ConditionalTemperature().fit(np.full((2000, 1), 1.5), np.repeat([1, 0], [600, 1400]))
    fit = fitted.position_fits_[0]
    assert fit.status is PositionStatus.TEMPERATURE_CANNOT_FIT
    assert fit.residual == pytest.approx(0.20, abs=1e-3)
    assert fit.reason is not None
    assert "temperature alone cannot fix" in fit.reason


def test_r17_by_likelihood() -> None:
    root = fit_temperature(np.full(100, 3.0), np.repeat([1, 0], [70, 30]))
    assert root.temperature == pytest.approx(3.0 / math.log(7 / 3), rel=1e-9)


@pytest.mark.property
@settings(max_examples=60)
@given(
    st.integers(2, 200),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["hard", "soft"]),
    st.floats(0, 50),
)
def test_minimises_the_penalised_loss(rows: int, seed: int, kind: str, ridge: float) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=10 ** rng.uniform(-1, 1), size=rows)
    y = rng.random(rows) if kind == "soft" else (rng.random(rows) < 0.5).astype(float)

    def loss(t: float) -> float:
        temperature = math.exp(t)
        return log_loss(temperature, z, y) + 0.5 * ridge * (1 / temperature - 1) ** 2

    root = fit_temperature(z, y, ridge=ridge)
    edge = math.log(20.0)
    best = minimize_scalar(loss, bounds=(-edge, edge), method="bounded")
    assert 0.05 <= root.temperature <= 20.0
    assert loss(math.log(root.temperature)) <= best.fun + 1e-7 * (1 + abs(best.fun))


@pytest.mark.property
@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_r26_any_order_gives_the_same_bits(rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, y = np.round(rng.normal(size=rows), 2), rng.random(rows) < 0.6
    order = rng.permutation(rows)
    assert fit_temperature(z, y) == fit_temperature(z[order], y[order])


def test_ridge_pulls_towards_one() -> None:
    found = [fit_temperature(R21_LOGITS, R21_LABELS, ridge=r).temperature for r in (0, 1, 10, 1e6)]
    assert found[0] < found[1] < found[2] < found[3]
    assert found[3] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("z", "y"), [([], []), ([0.0, 0.0], [1, 0])])
def test_rows_that_say_nothing_leave_one(z: Any, y: Any) -> None:
    root = fit_temperature(z, y)
    assert (root.temperature, root.at_bound) == (1.0, None)


def test_extreme_logits_do_not_overflow() -> None:
    root = fit_temperature([3e38, -3e38, 1e38, -1e38], [1, 0, 0, 1], bounds=(1e-30, 1e30))
    assert root.at_bound == "upper"
    assert fit_temperature([1e-38, -2e-38], [1, 0], bounds=(1e-30, 1e30)).at_bound == "lower"


@pytest.mark.parametrize(
    ("z", "y"),
    [([1.0], [1, 0]), ([[1.0]], [[1]]), ([np.inf], [1]), ([1.0], [1.5]), ([1.0], [np.nan])],
)
def test_wrong_rows_are_refused(z: Any, y: Any) -> None:
    with pytest.raises(RecordError):
        fit_temperature(z, y)


def records(rows: int, seed: int, *, trim: bool, soft: bool = False) -> AcceptanceRecords:
    """Rows verified as far as their own uncalibrated survival exceeds 0.6 when ``trim``."""
    blocks = simulate(rows, seed, gamma=4)
    raw = np.cumprod(1 / (1 + np.exp(-blocks.logits.astype(np.float64))), axis=1)
    verified = (raw > 0.6).sum(axis=1) if trim else np.full(rows, 4)
    columns: dict[str, Any] = {
        "confidence_logits": blocks.logits,
        "verified": verified,
        "accepted": np.minimum(blocks.accepted, verified),
    }
    if soft:
        true = blocks.logits / TRUE_TEMPERATURES[:4]
        columns["soft_labels"] = (1 / (1 + np.exp(-true))).astype(np.float32)
    return AcceptanceRecords.from_columns(4, columns)


def test_right_under_trimming_by_the_confidences_themselves() -> None:
    trimmed = records(60_000, seed=1, trim=True)
    fitted = ConditionalTemperature().fit_records(trimmed)
    assert fitted.temperatures_ == pytest.approx(TRUE_TEMPERATURES[:4], rel=0.06)
    assert fitted.position_statuses_ == (PositionStatus.OK,) * 4
    naive = SequentialTemperatureScaling().fit(trimmed.confidence_logits, trimmed.accepted)
    assert abs(np.log(naive.temperatures_ / TRUE_TEMPERATURES[:4])).max() > 0.3
    published = fitted.calibration()
    assert published.method == "temperature"
    assert published.status is ServingStatus.FITTED


def test_rows_are_the_observed_labels() -> None:
    trimmed = records(3000, seed=2, trim=True)
    fitted = ConditionalTemperature().fit_records(trimmed)
    expected = np.minimum(trimmed.accepted.astype(int) + 1, trimmed.verified)
    assert [fit.rows for fit in fitted.position_fits_] == [
        int((expected >= k).sum()) for k in (1, 2, 3, 4)
    ]


def test_every_form_of_labels_gives_the_same_fit() -> None:
    trimmed = records(2000, seed=3, trim=True)
    z, n = trimmed.confidence_logits, trimmed.accepted
    expected = ConditionalTemperature().fit_records(trimmed).position_fits_
    direct = ConditionalTemperature().fit(z, n, verified=trimmed.verified)
    assert direct.position_fits_ == expected
    labels = conditional_labels(trimmed)
    assert ConditionalTemperature().fit(z, labels).position_fits_ == expected


def test_soft_labels_are_far_less_noisy() -> None:
    few = records(300, seed=4, trim=True, soft=True)
    soft = ConditionalTemperature(labels="soft", minimum_rows=0).fit_records(few)
    assert soft.temperatures_ == pytest.approx(TRUE_TEMPERATURES[:4], rel=1e-4)
    assert soft.calibration().label_kind == "soft_full"
    hard = ConditionalTemperature(minimum_rows=0).fit_records(few)
    assert abs(hard.temperatures_ - soft.temperatures_).max() > 0.01
    with pytest.raises(RecordError, match="soft_labels"):
        ConditionalTemperature(labels="soft").fit_records(records(300, seed=4, trim=True))


def test_few_rows_one_class_and_parents() -> None:
    blocks = simulate(500, seed=5, gamma=2)
    fitted = ConditionalTemperature(parent_temperatures=(1.3, 1.4)).fit(
        blocks.logits, np.minimum(blocks.accepted, 1) * 2
    )
    assert [s.value for s in fitted.position_statuses_] == ["insufficient", "one_class"]
    assert fitted.temperatures_[0] != 1.3  # few rows change no number …
    assert fitted.temperatures_[1] == 1.4
    assert fitted.calibration().temperatures == (1.3, 1.4)  # … only what is published


def test_r25_probabilities_are_refused() -> None:
    with pytest.raises(FitRefusedError) as caught:
        ConditionalTemperature().fit(np.random.default_rng(6).random((100, 1)), np.arange(100) % 2)
    assert caught.value.status == Refusal.LOOKS_LIKE_PROBABILITIES


@pytest.mark.slow
@pytest.mark.statistical
def test_three_times_less_noise_than_the_ece_search() -> None:
    logs: dict[str, list[Any]] = {"likelihood": [], "ece": []}
    for seed in range(60):
        blocks = simulate(1000, seed=1000 + seed, gamma=3)
        likelihood = ConditionalTemperature(minimum_rows=0).fit(blocks.logits, blocks.accepted)
        ece = SequentialTemperatureScaling(minimum_rows=0).fit(blocks.logits, blocks.accepted)
        logs["likelihood"].append(np.log(likelihood.temperatures_))
        logs["ece"].append(np.log(ece.temperatures_))
    spread = {name: float(np.std(values, axis=0).mean()) for name, values in logs.items()}
    bias = np.mean(logs["likelihood"], axis=0) - np.log(TRUE_TEMPERATURES[:3])
    assert spread["ece"] > 2.0 * spread["likelihood"]
    assert np.abs(bias).max() < 3.5 * spread["likelihood"] / math.sqrt(60) + 0.01


def test_scikit_learn_clone_and_pipeline() -> None:
    blocks = simulate(400, seed=7, gamma=2)
    original = ConditionalTemperature(ridge=2.0, bounds=(0.1, 10.0))
    copied = clone(original)
    pipeline = make_pipeline(FunctionTransformer(), copied)
    confidence = pipeline.fit(blocks.logits, blocks.accepted).transform(blocks.logits)
    original.fit(blocks.logits, blocks.accepted)
    assert np.array_equal(confidence, original.transform(blocks.logits))
    assert np.array_equal(original.survival(blocks.logits), np.cumprod(confidence, axis=1))


def test_before_fit_there_are_no_results() -> None:
    with pytest.raises(NotFittedError):
        ConditionalTemperature().transform(np.zeros((1, 1)))


@pytest.mark.parametrize(
    ("parameters", "field"),
    [({"ridge": -1.0}, "ridge"), ({"bounds": (2, 3)}, "bounds"), ({"n_bins": 0}, "n_bins")],
)
def test_wrong_parameters_are_named(parameters: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ConditionalTemperature(**parameters).fit(R21_LOGITS[:, None], R21_LABELS)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("y", "verified"),
    [(None, None), ([1, 0], None), ([[1, 0]] * 6, None), ([[1]] * 6, [1] * 6), ([[2]] * 6, None)],
)
def test_wrong_labels_are_refused(y: Any, verified: Any) -> None:
    with pytest.raises(RecordError):
        ConditionalTemperature().fit(R21_LOGITS[:, None], y, verified=verified)


def test_wrong_kind_of_labels_is_named() -> None:
    with pytest.raises(ConfigurationError, match="labels"):
        ConditionalTemperature(labels="firm").fit_records(records(50, 8, trim=False))  # type: ignore[arg-type]
