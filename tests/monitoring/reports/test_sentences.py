from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.cost_table import FlatCostTable
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.statuses import PositionStatus, ServingStatus
from monitoring.reports.evaluation_report import evaluation_report
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from monitoring.reports.sentences import (
    evaluation_sentences,
    fit_sentences,
    headline,
    points,
    position_sentences,
    worth_sentences,
)
from monitoring.reports.throughput import Throughput, throughput
from tests.support.telemetry import synthetic_records


def constant_head(confidence: float, acceptance: float, rows: int = 1000) -> AcceptanceRecords:
    """One position, every logit the same: gaps are known by hand."""
    logit = np.log(confidence / (1.0 - confidence))
    accepted = (np.arange(rows) < acceptance * rows).astype(int)
    columns: dict[str, Any] = {
        "confidence_logits": np.full((rows, 1), logit),
        "verified": np.ones(rows, dtype=int),
        "accepted": accepted,
    }
    return AcceptanceRecords.from_columns(1, columns)


def find(sentences: list[str], start: str) -> str:
    (found,) = [sentence for sentence in sentences if sentence.startswith(start)]
    return found


def test_gap_and_what_calibration_removes_by_hand() -> None:
    """Raw .8, calibrated σ(logit(.8) / 2) = 2/3, observed .7: 10 points, 6.7 of them removed."""
    half = Calibration.from_temperatures([2.0], gamma=1)
    sentences = evaluation_sentences(evaluation_report(constant_head(0.8, 0.7), half))
    assert find(sentences, "Raw confidence") == (
        "Raw confidence is overconfident by 10.0 points at position 1 (survival); "
        "calibration removes 6.7 of them."
    )


def test_underconfidence_and_a_calibration_that_makes_it_worse() -> None:
    half = Calibration.from_temperatures([2.0], gamma=1)
    sentences = evaluation_sentences(evaluation_report(constant_head(0.8, 0.9), half))
    assert find(sentences, "Raw confidence") == (
        "Raw confidence is underconfident by 10.0 points at position 1 (survival); "
        "calibration leaves 23.3, which is no gain."
    )


def test_a_gap_within_chance_is_called_so() -> None:
    identity = Calibration.identity(1)
    sentences = evaluation_sentences(evaluation_report(constant_head(0.8, 0.79), identity))
    assert "On average raw survival is right at every position, within chance." in sentences


def test_raw_confidence_alone_has_nothing_to_remove() -> None:
    identity = Calibration.identity(1)
    sentences = evaluation_sentences(evaluation_report(constant_head(0.8, 0.7), identity))
    assert find(sentences, "Raw confidence").endswith("at position 1 (survival).")
    assert "calibrated" not in find(sentences, "Mean survival ECE")


def test_a_fit_names_rows_slices_leak_and_references(fitted: FitReport) -> None:
    text = "\n".join(fit_sentences(fitted))
    assert re.search(r"^Fitted on [\d,]+ blocks of \d+ prompts, judged on [\d,]+ blocks of", text)
    assert re.search(r"Over all positions the survival error falls from .* points \[", text)
    assert re.search(r"By domain, .*: chat \(\d\.\d → \d\.\d\), code \(.*\), math \(", text)
    assert re.search(r"By sampling temperature, .*: 0 \(\d\.\d → \d\.\d\), 0\.5-0\.85 \(", text)
    assert "The next logit knows about the outcome before it" in text
    assert re.search(r"isotonic \d\.\d, Platt \d\.\d points", text)
    assert "Soft labels agree with acceptance" in text
    assert "nan" not in text.lower()


def test_a_refusal_comes_first_and_positions_say_why() -> None:
    sentences = fit_sentences(fit_report(synthetic_records(400), FitOptions(method="sts")))
    assert sentences[0].startswith("Nothing is published. insufficient: ")
    assert find(sentences, "Positions 1, 2, 3, 4, 5, 6, 7 keep T = 1 (insufficient). ")


def test_a_change_within_the_interval_is_no_fall() -> None:
    slight = Calibration.from_temperatures([1.02] * 7, gamma=7)
    sentences = evaluation_sentences(evaluation_report(synthetic_records(1000), slight))
    assert find(sentences, "Over all").startswith("Over all positions the survival error hardly")


def test_a_rising_log_loss_is_not_kept_quiet() -> None:
    """Sharp nonsense: a coin's logits scaled up; the ECE of one bin each says little."""
    sharp = Calibration.from_temperatures([0.1] * 7, gamma=7)
    sentences = evaluation_sentences(evaluation_report(synthetic_records(1000), sharp))
    assert find(sentences, "But the mean log loss of survival rises from ")


def test_fits_on_their_own_rows_are_marked() -> None:
    options = FitOptions(method="sts", split_column=None, minimum_rows=50)
    sentences = fit_sentences(fit_report(synthetic_records(1000), options))
    assert any("too kind" in sentence for sentence in sentences)


def test_no_leak_is_said_to_be_none(fitted: FitReport) -> None:
    evaluation = fitted.evaluation
    nil = replace(evaluation.leak.pooled, partial=0.001, partial_low=-0.01, partial_high=0.012)
    report = replace(evaluation, leak=replace(evaluation.leak, pooled=nil))
    assert "will do as survival" in find(evaluation_sentences(report), "The next logit")


@pytest.mark.slow
def test_a_slice_that_gets_worse_is_named() -> None:
    """Temperatures of three, where two slices need about 1.4: at greedy nothing is gained."""
    wrong = Calibration.from_temperatures([0.3] * 7, gamma=7)
    sentences = evaluation_sentences(evaluation_report(synthetic_records(4000), wrong))
    assert any(sentence.startswith("Calibration makes domain=math worse") for sentence in sentences)


def test_excluded_rows_and_thin_slices_are_counted() -> None:
    records = synthetic_records(600).with_flag(Flag.WARMUP, np.arange(40))
    sentences = evaluation_sentences(evaluation_report(records, Calibration.identity(7)))
    assert find(sentences, "Left out") == "Left out: 40 warmup."
    assert "chat (only" in find(sentences, "By domain")


@pytest.mark.parametrize(("value", "text"), [(0.0412, "4.1"), (-0.0001, "0.0"), (-0.03, "-3.0")])
def test_points(value: float, text: str) -> None:
    assert points(value) == text


@pytest.mark.parametrize(
    ("loss", "low", "high", "beginning"),
    [
        (0.0125, 0.01, 0.015, "Calibration is worth 1.25 % [1.00 %, 1.50 %] of the tokens"),
        (-0.002, -0.003, -0.001, "Calibration costs 0.20 % [0.10 %, 0.30 %] of the tokens"),
        (0.001, -0.001, 0.003, "No difference in tokens a second can be shown: raw confidence"),
        (0.001, None, None, "Replayed, raw confidence loses 0.10 % of the tokens"),
        (0.0, 0.0, 0.0, None),
    ],
)
def test_worth_is_claimed_only_beyond_chance(
    loss: float, low: float | None, high: float | None, beginning: str | None
) -> None:
    records = synthetic_records(64, gamma=2)
    cost = FlatCostTable((1, 4), (10.0, 5.0), 64)
    measured = throughput(records, Calibration.identity(2), cost, batch_size=2).regret
    assert measured is not None
    worth = Throughput(replace(measured, loss=loss, loss_low=low, loss_high=high))
    found = list(worth_sentences(worth))
    assert [said.startswith(beginning) for said in found] == [True] if beginning else found == []


def test_of_what_is_not_known_nothing_is_said() -> None:
    assert list(worth_sentences(None)) == list(worth_sentences(Throughput(None, "why"))) == []


def test_the_headline_says_how_far_off_and_how_much_is_removed() -> None:
    """.84 predicted and .80 observed; T brings the prediction to .805: 3.5 of 4.0 points."""
    temperature = float(np.log(0.84 / 0.16) / np.log(0.805 / 0.195))
    model = Calibration.from_temperatures([temperature], gamma=1)
    found = headline(evaluation_report(constant_head(0.84, 0.80), model))
    assert found == (
        "Raw confidence is overconfident by 4.0 points at position 1 (survival); "
        "calibration removes 3.5 of them."
    )
    assert headline(evaluation_report(AcceptanceRecords.empty(1), model)) is None


def test_positions_that_fell_back_are_named_with_the_reason() -> None:
    fitted = Calibration.from_temperatures([1.5, 1.0], gamma=2)
    model = replace(
        fitted,
        status=ServingStatus.PARTIAL,
        position_statuses=(PositionStatus.OK, PositionStatus.TEMPERATURE_CANNOT_FIT),
        evidence={"positions": [{}, {"reason": "no temperature crosses one half"}]},
    )
    assert list(position_sentences(model)) == [
        "Position 2 keeps T = 1 (temperature cannot fit). no temperature crosses one half"
    ]
    assert list(position_sentences(Calibration.identity(2))) == []
