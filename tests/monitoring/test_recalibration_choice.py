from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from calib.records import AcceptanceRecords
from monitoring import recalibration_choice
from monitoring.recalibration_choice import (
    RULE,
    RULE_ON_FEW_ROWS,
    RowLosses,
    _clearly_worse,
    _difference,
    _segment_evidence,
    choose_method,
    row_losses,
)
from monitoring.recalibration_methods import MethodRules
from tests.support.leaky_generator import simulate_leaky, trimmed_lengths


def test_losses_count_only_where_the_position_was_verified() -> None:
    records = AcceptanceRecords.from_columns(
        2,
        {
            "confidence_logits": np.zeros((3, 2), dtype=np.float32),
            "verified": [2, 1, 0],
            "accepted": [1, 1, 0],
        },
    )
    survival = np.array([[0.8, 0.4], [0.5, 0.1], [0.9, 0.9]])
    found = row_losses(records, survival)
    assert found.labels.tolist() == [2, 1, 0]
    expected = [-math.log(0.8) - math.log(0.6), -math.log(0.5), 0.0]
    assert found.loss == pytest.approx(expected)
    assert found.mean == pytest.approx(sum(expected) / 3)
    certain = row_losses(records, np.array([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert np.isfinite(certain.loss).all()


def test_difference_takes_rows_of_a_prompt_as_one_piece_of_luck() -> None:
    labels = np.array([2, 1, 1, 2])
    one, other = RowLosses(np.array([1.0, 2.0, 3.0, 4.0]), labels), RowLosses(np.ones(4), labels)
    mean, error = _difference(one, other, np.array([0, 0, 1, 1]))
    assert mean == pytest.approx((0 + 1 + 2 + 3) / 6)
    # By cluster: sums 1 and 5 over 3 labels each, so residuals are 1 - 3 and 5 - 3.
    assert error == pytest.approx(math.sqrt((4 + 4) * 2 / 1) / 6)
    assert _difference(one, other, np.zeros(4, dtype=np.intp))[1] == math.inf


def test_where_a_temperature_is_exactly_right_the_simplest_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recalibration_choice, "FEW_ROWS", 6000)
    records = simulate_leaky(6000, 4).records()
    choice = choose_method(records, 1.0, MethodRules())
    assert (choice.method, choice.segments) == ("temperature", False)
    assert choice.evidence["rule"] == RULE
    named = {entry["method"]: entry for entry in choice.evidence["candidates"]}
    assert set(named) == {"temperature", "sts", "affine", "survival"}
    assert named["temperature"]["above_best"] <= named["temperature"]["standard_error"]
    assert choice.evidence["scored_rows"] == 3000


@pytest.mark.parametrize("leak", [0.0, 0.18])
@pytest.mark.parametrize("trimmed", [False, True])
def test_few_rows_are_fitted_by_survival_though_half_of_them_show_no_leak(
    leak: float, trimmed: bool
) -> None:
    blocks = simulate_leaky(1000, 21, partial=leak)
    records = blocks.records(trimmed_lengths(blocks.logits) if trimmed else None)
    choice = choose_method(records, 1.0, MethodRules())
    assert choice.method == "survival"
    assert choice.evidence["rule"] == RULE_ON_FEW_ROWS


def test_few_rows_on_which_survival_is_clearly_worse_keep_the_simplest() -> None:
    labels = np.ones(50, dtype=np.int64)
    better = RowLosses(np.linspace(0.5, 0.6, 50), labels)
    clusters = np.arange(50)
    for gap, noise, expected in ((0.02, 0.001, True), (0.02, 0.5, False), (-0.02, 0.001, False)):
        wave = noise * np.resize([1.0, -1.0], 50)
        losses = {"temperature": better, "survival": RowLosses(better.loss + gap + wave, labels)}
        assert _clearly_worse(losses, clusters) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("temperatures", "affine", "kept"),
    [(-0.02, -0.02, True), (0.01, -0.05, False), (-0.05, 0.01, False), (0.0, -0.05, True)],
)
def test_segments_that_raise_the_loss_of_one_form_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, temperatures: float, affine: float, kept: bool
) -> None:
    records = simulate_leaky(50, 3).records()
    labels = np.ones(50, dtype=np.int64)
    pooled = {form: RowLosses(np.full(50, 0.5), labels) for form in ("temperatures", "affine")}
    changes = {"temperatures": temperatures, "affine": affine}
    wave = 0.001 * np.resize([1.0, -1.0], 50)
    found = {form: RowLosses(0.5 + change + wave, labels) for form, change in changes.items()}
    monkeypatch.setattr(recalibration_choice, "_losses_of", lambda *_: found)
    fit = SimpleNamespace(table=object())
    told = _segment_evidence(fit, pooled, records, np.arange(50))  # type: ignore[arg-type]
    assert told["kept"] is kept
    assert told["gain"] == pytest.approx(-(temperatures + affine) / 2.0)
    assert told["gain_by_form"] == pytest.approx({form: -each for form, each in changes.items()})
