from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from calib.calibration import Calibration
from calib.errors import RecordError
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.survival_leak import MINIMUM_ROWS, measure_leak
from tests.support.telemetry import TEMPERATURES, synthetic_records

IDENTITY = Calibration.identity(2)


def pair_records(
    rows: int, leak: float, seed: int, *, per_prompt: int = 1, temperature: float = 1.0
) -> AcceptanceRecords:
    """Two positions; z_2 = z_1 / 2 + leak·(y_1 - c_1) + unit noise, both conditionals exact.

    Rows of a prompt share half of the noise's variance, so they are no independent evidence.
    """
    draw = np.random.default_rng(seed)
    first = draw.normal(0.8, 1.0, rows)
    coin = draw.random(rows) < expit(first)
    prompt = np.arange(rows) // per_prompt
    shared = draw.normal(0.0, 1.0, rows)[prompt] if per_prompt > 1 else 0.0
    noise = draw.normal(0.0, 1.0, rows)
    noise = (noise + shared) / np.sqrt(2.0) if per_prompt > 1 else noise
    second = 0.5 * first + leak * (coin - expit(first)) + noise
    accepted = np.where(coin, 1 + (draw.random(rows) < expit(second)), 0)
    columns = {
        "confidence_logits": temperature * np.stack([first, second], axis=1),
        "verified": np.full(rows, 2),
        "accepted": accepted,
        "prompt": [str(number) for number in prompt],
    }
    return AcceptanceRecords.from_columns(2, columns)


# E[c(1 - c)] of c = σ(z), z ~ Normal(0.8, 1), by Gauss-Hermite quadrature.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
_COIN = float(np.sum(_WEIGHTS * expit(0.8 + _NODES) * expit(-0.8 - _NODES)) / np.sqrt(2.0 * np.pi))


def leak_for(partial: float) -> float:
    """Coefficient that gives this partial correlation: r = λσ / √(λ²σ² + 1)."""
    return float(partial / np.sqrt(_COIN * (1.0 - partial**2)))


@pytest.mark.parametrize("partial", [0.0, 0.18, -0.18])
def test_known_leak_is_recovered(partial: float) -> None:
    records = pair_records(60_000, leak_for(partial), seed=5)
    leak = measure_leak(records, IDENTITY)
    estimate = leak.positions[0]
    # Plain correlation: the same covariance over a variance that z_1 adds 1/4 to.
    plain = partial * np.sqrt(1.0 / (1.0 + 0.25 * (1.0 - partial**2)))
    assert estimate.partial == pytest.approx(partial, abs=0.013)  # three standard errors
    assert estimate.correlation == pytest.approx(plain, abs=0.013)
    assert estimate.is_present is (partial != 0.0)
    assert estimate.partial_low is not None
    assert estimate.partial_high is not None
    assert estimate.partial_low < partial < estimate.partial_high
    assert leak.pooled.partial == pytest.approx(estimate.partial)
    assert (estimate.position, estimate.rows, estimate.clusters) == (1, 60_000, 60_000)


def two_token_columns(copies: int) -> dict[str, Any]:
    """q = (.5, .5), p = (.9, .1), c_2 = (.9, .1), in exact proportions of 100 rows.

    c_1 = Σ min(q, p) = .6. Token A is always accepted, token B with .1 / .5 = .2.
    """
    accepted = [2] * 45 + [1] * 5 + [2] + [1] * 9 + [0] * 40
    second = [logit(0.9)] * 50 + [logit(0.1)] * 50
    return {
        "confidence_logits": [[logit(0.6), z] for z in second] * copies,
        "verified": [2] * 100 * copies,
        "accepted": accepted * copies,
    }


def test_m1_exact_two_token_case() -> None:
    records = AcceptanceRecords.from_columns(2, two_token_columns(1))
    leak = measure_leak(records, IDENTITY)
    estimate = leak.positions[0]
    # cov(y_1, token) = (.5·1 - .5·.2) = .4 over √(.6·.4) · 1.
    assert estimate.correlation == pytest.approx(0.4 / np.sqrt(0.24), abs=1e-6)
    assert estimate.partial == pytest.approx(estimate.correlation, abs=1e-9)  # z_1 is constant
    # P(n >= 2) = .46, and the product says .30.
    assert estimate.product_gap == pytest.approx(0.46 - 0.30, abs=1e-6)
    assert float(IDENTITY.survival(records.confidence_logits)[:, 1].mean()) == pytest.approx(0.30)
    assert float((records.accepted >= 2).mean()) == 0.46


def test_rows_are_those_with_an_observed_label() -> None:
    records = synthetic_records(4000)
    verified, accepted = records.verified.astype(int), records.accepted.astype(int)
    leak = measure_leak(records, Calibration.identity(7))
    for index, estimate in enumerate(leak.positions, start=1):
        by_hand = np.count_nonzero((verified >= index) & (accepted >= index - 1))
        assert estimate.rows == by_hand
    assert leak.pooled.rows == sum(estimate.rows for estimate in leak.positions)
    assert leak.pooled.clusters == 120


def test_trimming_does_not_invent_a_leak() -> None:
    """ℓ follows z_{<=k} (early stop): rows go missing, their labels stay fair."""
    records = pair_records(60_000, 0.0, seed=2)
    first = records.confidence_logits[:, 0]
    verified = np.where(first > 0.5, 2, 1)
    trimmed = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": records.confidence_logits,
            "verified": verified,
            "accepted": np.minimum(records.accepted, verified),
        },
    )
    estimate = measure_leak(trimmed, IDENTITY).positions[0]
    assert estimate.rows == 60_000
    assert abs(estimate.partial or 0.0) < 0.013


def test_partial_sees_past_a_temperature_error() -> None:
    """An overconfident c_1 correlates with z_2 through z_1; given z_1 hardly anything is left."""
    records = pair_records(60_000, 0.0, seed=3, temperature=1.6)
    raw = measure_leak(records, IDENTITY).positions[0]
    fitted = Calibration.from_temperatures([1.6, 1.6], gamma=2)
    calibrated = measure_leak(records, fitted).positions[0]
    assert raw.correlation is not None
    assert raw.correlation < -0.03  # four standard errors below 0
    assert abs(raw.partial or 0.0) < 0.013
    assert abs(calibrated.correlation or 0.0) < 0.013


def test_calibrated_synthetic_telemetry_has_the_leak_it_was_given() -> None:
    fitted = Calibration.from_temperatures(TEMPERATURES, gamma=7)
    without = measure_leak(synthetic_records(20_000), fitted).pooled
    with_leak = measure_leak(synthetic_records(20_000, leak=0.6), fitted).pooled
    assert without.is_present is False
    assert with_leak.is_present is True
    assert with_leak.product_gap_low is not None
    assert with_leak.product_gap_low > 0


@pytest.mark.slow
@pytest.mark.statistical
@pytest.mark.parametrize("partial", [0.0, 0.18])
def test_clustered_interval_covers(partial: float) -> None:
    """300 data sets of 100 prompts x 20 rows: at least 91 % of 95 % intervals hold the truth."""
    hits = 0
    for seed in range(300):
        records = pair_records(2000, leak_for(partial), seed, per_prompt=20)
        estimate = measure_leak(records, IDENTITY).positions[0]
        assert estimate.partial_low is not None
        assert estimate.partial_high is not None
        hits += estimate.partial_low <= partial <= estimate.partial_high
    assert 273 <= hits <= 297


def test_shared_luck_widens_the_interval() -> None:
    """Every row sent twenty times under its own prompt: the estimate stays, the width stays."""
    once = pair_records(500, 0.6, seed=8)
    many = once.select(np.repeat(np.arange(500), 20))
    single, repeated = (measure_leak(part, IDENTITY).positions[0] for part in (once, many))
    naive = measure_leak(many, IDENTITY, cluster_column=None).positions[0]

    def width(estimate: Any) -> float:
        return float(estimate.partial_high - estimate.partial_low)

    assert repeated.partial == pytest.approx(single.partial)
    assert width(repeated) == pytest.approx(width(single), rel=1e-9)
    assert width(naive) < 0.3 * width(single)


def test_excluded_rows_take_no_part() -> None:
    records = pair_records(200, 0.0, seed=1)
    marked = records.with_flag(Flag.WARMUP, np.arange(100))
    assert measure_leak(marked, IDENTITY).positions[0].rows == 100


def test_one_class_and_constant_logits_are_null() -> None:
    accepted_all = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.random.default_rng(0).normal(size=(50, 2)),
            "verified": [2] * 50,
            "accepted": [2] * 50,
        },
    )
    estimate = measure_leak(accepted_all, IDENTITY).positions[0]
    assert (estimate.partial, estimate.reason) == (None, "one_class")
    flat = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.full((50, 2), 0.3),
            "verified": [2] * 50,
            "accepted": [0, 1] * 25,
        },
    )
    estimate = measure_leak(flat, IDENTITY).positions[0]
    assert (estimate.correlation, estimate.reason) == (None, "one_class")
    assert estimate.product_gap is not None
    assert estimate.is_present is None


def test_few_rows_and_no_rows_are_null() -> None:
    few = measure_leak(pair_records(MINIMUM_ROWS - 1, 0.0, seed=0), IDENTITY)
    assert few.positions[0].reason == "too_few_rows"
    unverified = AcceptanceRecords.from_columns(
        2, {"confidence_logits": np.zeros((40, 2)), "verified": [0] * 40, "accepted": [0] * 40}
    )
    leak = measure_leak(unverified, IDENTITY)
    assert (leak.positions[0].reason, leak.pooled.rows) == ("no_rows", 0)


def test_one_cluster_has_no_interval() -> None:
    records = pair_records(60, 0.5, seed=0, per_prompt=60)
    estimate = measure_leak(records, IDENTITY).positions[0]
    assert estimate.partial is not None
    assert (estimate.partial_low, estimate.is_present) == (None, None)


def test_gamma_one_has_no_next_logit() -> None:
    records = AcceptanceRecords.from_columns(
        1, {"confidence_logits": [[0.1]] * 40, "verified": [1] * 40, "accepted": [0, 1] * 20}
    )
    leak = measure_leak(records, Calibration.identity(1))
    assert leak.positions == ()
    assert leak.pooled.reason == "no_rows"


def test_json_holds_no_nan() -> None:
    leak = measure_leak(synthetic_records(300, prompts=20), Calibration.identity(7))
    text = json.dumps(leak.to_dict(), allow_nan=False)
    assert json.loads(text)["pooled"]["position"] is None
    assert json.loads(text)["cluster_column"] == "prompt"


def test_missing_cluster_column_is_named() -> None:
    records = AcceptanceRecords.from_columns(2, two_token_columns(1))
    assert measure_leak(records, IDENTITY).cluster_column is None
    with pytest.raises(RecordError, match="request: got None"):
        measure_leak(records, IDENTITY, cluster_column="request")
