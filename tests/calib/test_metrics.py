"""``calibration_metrics``: the cases, a float64 reference, peers, and properties of the whole."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calib.errors import ConfigurationError, InvalidInputError
from calib.metrics import PositionMetrics, calibration_metrics
from tests.calib.predictions import draw, plain_reference


def test_r01_ten_bins() -> None:
    metrics = calibration_metrics([0.92, 1.0, 1.0], [1, 0, 1], n_bins=10)
    assert metrics.ece == pytest.approx(0.306667, abs=1e-6)
    assert metrics.sharpness == (0,) * 9 + (3,)


def test_r04_equal_mass_of_ties() -> None:
    metrics = calibration_metrics([0.8] * 6, [1, 1, 0, 0, 0, 0])
    assert metrics.ece_equal_mass == pytest.approx(0.466667, abs=1e-6)


def test_r06_few_rows() -> None:
    metrics = calibration_metrics([0.2, 0.5, 0.9], [0, 1, 1])
    assert metrics.ece == pytest.approx(0.266667, abs=1e-6)
    assert len(metrics.bins) == 15
    assert sum(b is None for b in metrics.bins) == 12
    assert metrics.debiased_ece is None
    assert metrics.reasons["debiased_ece"] == "too_few_rows"
    _assert_plain_json(metrics)


def test_r08_soft_labels() -> None:
    metrics = calibration_metrics([0.6, 0.6], [0.5, 0.7])
    assert metrics.ece == pytest.approx(0.0, abs=1e-7)
    assert metrics.brier == pytest.approx(0.01, abs=1e-7)
    assert metrics.log_loss == pytest.approx(0.673012, abs=1e-6)


@pytest.mark.parametrize("label", [0, 1])
def test_r09_one_class(label: int) -> None:
    metrics = calibration_metrics([0.2, 0.2, 0.7, 0.7], [label] * 4)
    assert metrics.auc is None
    assert metrics.reasons == {"auc": "one_class"}
    assert metrics.ece == pytest.approx(0.55 if label else 0.45, abs=1e-6)
    _assert_plain_json(metrics)


def test_r10_ties() -> None:
    assert calibration_metrics([0.8, 0.8, 0.3], [1, 0, 0]).auc == 0.75


def test_r12_soft_auc() -> None:
    metrics = calibration_metrics([0.9, 0.6, 0.2], [0.8, 0.5, 0.1])
    assert metrics.auc == pytest.approx(0.8125, abs=1e-7)


def test_r13_saturated_logit() -> None:
    metrics = calibration_metrics([1.0], [0], logits=[40.0])
    assert metrics.log_loss == 40.0
    _assert_plain_json(metrics)
    # Without logits fp32 has lost the 40; what is left is a finite lower bound.
    without = calibration_metrics([1.0], [0])
    assert without.log_loss == pytest.approx(25 * math.log(2), abs=1e-6)


def test_r14_worst_bin() -> None:
    p = np.repeat([0.9, 0.1], [980, 20])
    y = np.concatenate([np.ones(882), np.zeros(98), np.ones(20)])
    metrics = calibration_metrics(p, y)
    assert metrics.ece == pytest.approx(0.018, abs=1e-6)
    assert metrics.worst_bin_gap == pytest.approx(0.9, abs=1e-6)
    assert metrics.debiased_ece == pytest.approx(0.9 * math.sqrt(0.02), abs=2e-3)


@pytest.mark.parametrize("soft", [False, True])
def test_agrees_with_a_reference_in_plain_floats(soft: bool) -> None:
    sample = draw(np.random.default_rng(0), 700, temperature=1.5, soft=soft)
    metrics = calibration_metrics(sample.p, sample.y)
    for name, value in plain_reference(sample.p, sample.y).items():
        assert getattr(metrics, name) == pytest.approx(value, abs=2e-7), name
    assert metrics.mean_label == pytest.approx(sample.y.mean(), abs=1e-7)
    assert metrics.mean_prediction == pytest.approx(sample.p.mean(), abs=1e-7)


@pytest.mark.parity
def test_weighted_values_agree_with_sklearn() -> None:
    peer = pytest.importorskip("sklearn.metrics")
    sample = draw(np.random.default_rng(1), 1000)
    weights = np.random.default_rng(2).random(1000)
    metrics = calibration_metrics(sample.p, sample.y, logits=sample.logits, weights=weights)
    given_weights = {"sample_weight": weights}
    assert metrics.auc == pytest.approx(
        peer.roc_auc_score(sample.y, sample.logits, **given_weights), abs=1e-12
    )
    assert metrics.log_loss == pytest.approx(
        peer.log_loss(sample.y, sample.p, **given_weights), abs=1e-9
    )
    assert metrics.brier == pytest.approx(
        peer.brier_score_loss(sample.y, sample.p, **given_weights), abs=1e-7
    )


def test_weights_of_one_change_nothing() -> None:
    sample = draw(np.random.default_rng(3), 500)
    plain = calibration_metrics(sample.p, sample.y).to_dict()
    weighted = calibration_metrics(sample.p, sample.y, weights=np.ones(500)).to_dict()
    for name, value in plain.items():
        if isinstance(value, float):
            assert weighted[name] == pytest.approx(value, abs=1e-6), name


def test_weight_zero_and_mask_leave_rows_out() -> None:
    sample = draw(np.random.default_rng(4), 300)
    keep = np.random.default_rng(5).random(300) < 0.6
    y = np.where(keep, sample.y, np.nan)
    masked = calibration_metrics(np.where(keep, sample.p, np.nan), y, mask=keep)
    selected = calibration_metrics(sample.p[keep], sample.y[keep], coverage=float(keep.mean()))
    assert masked == selected
    weighted = calibration_metrics(sample.p, y, weights=keep.astype(float))
    assert weighted.n == masked.n
    assert weighted.effective_n == pytest.approx(masked.n)


def test_clusters_widen_uncertainty_and_leave_the_rest() -> None:
    sample = draw(np.random.default_rng(6), 2000, cluster_size=20, correlation=0.6)
    plain = calibration_metrics(sample.p, sample.y)
    clustered = calibration_metrics(sample.p, sample.y, clusters=sample.clusters)
    assert clustered.effective_n < 0.5 * plain.effective_n
    assert clustered.null_level is not None
    assert plain.null_level is not None
    assert clustered.null_level > plain.null_level
    for name in ("ece", "brier", "log_loss", "auc", "mean_label", "worst_bin_gap"):
        assert getattr(clustered, name) == getattr(plain, name), name
    named = calibration_metrics(
        sample.p, sample.y, clusters=np.array([f"r{c}" for c in sample.clusters], dtype=object)
    )
    assert named.debiased_ece_high == pytest.approx(clustered.debiased_ece_high, rel=1e-9)


def test_auc_ranks_by_logits_where_probabilities_tie() -> None:
    logits = np.array([20.0, 30.0, 40.0, 50.0])
    assert calibration_metrics([1.0] * 4, [0, 0, 1, 1], logits=logits).auc == 1.0
    assert calibration_metrics([1.0] * 4, [0, 0, 1, 1]).auc == 0.5


@pytest.mark.parametrize("mask", [None, [False, False]])
def test_no_rows_give_nulls_with_reasons(mask: list[bool] | None) -> None:
    rows = [] if mask is None else [0.5, np.nan]
    metrics = calibration_metrics(rows, rows, mask=mask)
    assert metrics.n == 0
    assert metrics.effective_n == 0.0
    assert metrics.coverage == (None if mask is None else 0.0)
    nulls = {name for name, value in metrics.to_dict().items() if value is None}
    assert nulls == set(metrics.reasons)
    assert set(metrics.reasons.values()) == {"no_rows"}
    assert metrics.bins == (None,) * 15
    _assert_plain_json(metrics)


def _sample() -> dict[str, Any]:
    return {"p": [0.2, 0.8], "y": [0, 1]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"p": [0.2, 1.2]}, "p"),
        ({"p": [0.2, np.nan]}, "p"),
        ({"p": [[0.2], [0.8]]}, "p"),
        ({"y": [0, np.nan]}, "y"),
        ({"y": [0, 2]}, "y"),
        ({"y": [0, 1, 1]}, "y"),
        ({"mask": [True]}, "mask"),
        ({"weights": [1.0, -1.0]}, "weights"),
        ({"weights": [1.0, np.inf]}, "weights"),
        ({"clusters": [1]}, "clusters"),
        ({"logits": [-1.38629, np.inf]}, "logits"),
        ({"logits": [-1.38629, 2.8]}, "logits"),  # raw logits beside calibrated probabilities
    ],
)
def test_refuses_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        calibration_metrics(**{**_sample(), **change})
    assert caught.value.field == field


def test_refuses_bins() -> None:
    with pytest.raises(ConfigurationError):
        calibration_metrics(**_sample(), n_bins=0)
    with pytest.raises(ConfigurationError):
        calibration_metrics([], [], n_bins=-3)


def _assert_plain_json(metrics: PositionMetrics) -> None:
    values = metrics.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values


_rows = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 1, width=32), st.integers(0, 15).map(lambda i: i / 15)),
        st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, width=32)),
        st.integers(0, 3),
    ),
    max_size=30,
)


@pytest.mark.property
@settings(max_examples=60)
@given(rows=_rows, clustered=st.booleans())
def test_any_rows_give_plain_json_in_range(
    rows: list[tuple[float, float, int]], clustered: bool
) -> None:
    p, y, codes = (np.array(column) for column in zip(*rows, strict=True)) if rows else ([],) * 3
    metrics = calibration_metrics(p, y, clusters=codes if clustered and rows else None)
    _assert_plain_json(metrics)
    values = metrics.to_dict()
    assert {name for name, value in values.items() if value is None} == set(metrics.reasons)
    for name, value in values.items():
        if isinstance(value, float) and not name.startswith(("log_loss", "effective")):
            assert -1.0 <= value <= 1.0 + 1e-9, name
    assert 0.0 <= metrics.effective_n <= metrics.n * (1 + 1e-9)
    assert sum(metrics.sharpness) == metrics.n


@pytest.mark.property
@settings(max_examples=60)
@given(rows=_rows.filter(bool), order=st.randoms(use_true_random=False))
def test_row_order_does_not_matter(rows: list[tuple[float, float, int]], order: Any) -> None:
    before = calibration_metrics(*(np.array(c) for c in list(zip(*rows, strict=True))[:2]))
    order.shuffle(rows)
    after = calibration_metrics(*(np.array(c) for c in list(zip(*rows, strict=True))[:2]))
    # Log losses are floating-point means; everything else is made of exact sums.
    for name in PositionMetrics.__dataclass_fields__:
        one, other = getattr(before, name), getattr(after, name)
        if name.startswith(("log_loss", "effective_n")):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-9), name
        else:
            assert one == other, name


@pytest.mark.property
@settings(max_examples=40)
@given(rows=_rows.filter(bool))
def test_fp64_and_fp32_input_agree(rows: list[tuple[float, float, int]]) -> None:
    p, y = (np.array(column) for column in list(zip(*rows, strict=True))[:2])
    cast: Callable[[Any], Any] = np.float32
    assert calibration_metrics(p, y) == calibration_metrics(cast(p), cast(y))
