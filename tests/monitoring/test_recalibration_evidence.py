from __future__ import annotations

import sys

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from calib.statuses import Refusal
from monitoring.held_out_rows import HeldOutRows
from monitoring.recalibration_evidence import HeldOutComparison, code_versions
from monitoring.reports.evaluation_report import Judgement, judge

ROWS = 1000


def records(accepted: int) -> AcceptanceRecords:
    """γ = 1: logit 0.775 (c = .6846) in every row."""
    return AcceptanceRecords.from_columns(
        1,
        {
            "confidence_logits": np.full((ROWS, 1), 0.775, dtype=np.float32),
            "verified": np.ones(ROWS, dtype=np.uint8),
            "accepted": (np.arange(ROWS) < accepted).astype(np.uint8),
        },
    )


def judged(rows: AcceptanceRecords, temperature: float) -> Judgement:
    calibration = Calibration.from_temperatures([temperature], gamma=1)
    return judge(rows, calibration, 15)


def comparison(before: float, after: float, *, accepted: int = 635) -> HeldOutComparison:
    rows = records(accepted)
    split = HeldOutRows(rows, rows, "later_rows", 0.5)
    return HeldOutComparison(4, judged(rows, before), judged(rows, after), split)


def test_less_error_and_less_log_loss_replaces_the_champion() -> None:
    verdict = comparison(3.54, 1.0).verdict
    assert (verdict.replace, verdict.refusal) == (True, None)
    assert "against revision 4 falls from 0.08" in verdict.reason


def test_more_error_does_not() -> None:
    verdict = comparison(1.0, 3.54).verdict
    assert (verdict.replace, verdict.refusal) == (False, Refusal.NOT_BETTER)


def test_equal_numbers_are_no_reason_to_publish() -> None:
    rows = records(635)
    same = judged(rows, 1.0)
    verdict = HeldOutComparison(2, same, same, HeldOutRows(rows, rows, "later_rows", 0.5)).verdict
    assert verdict.refusal is Refusal.NOT_BETTER
    assert "same numbers as revision 2" in verdict.reason


def test_numbers_are_those_of_a_calculator() -> None:
    """σ(.775) = .68460, σ(.775/3.54) = .55451; 635 of 1,000 accepted."""
    found = comparison(1.0, 3.54).to_dict()
    assert found["survival_ece"]["before"] == pytest.approx(0.04960, abs=1e-5)
    assert found["survival_ece"]["after"] == pytest.approx(0.08049, abs=1e-5)
    # −(.635 ln .68460 + .365 ln .31540) and the same with .55451.
    assert found["survival_log_loss"]["before"] == pytest.approx(0.66179, abs=1e-5)
    assert found["survival_log_loss"]["after"] == pytest.approx(0.66957, abs=1e-5)
    (position,) = found["positions"]
    assert (position["position"], position["rows"]) == (1, ROWS)
    assert position["ece"] == {
        "before": found["survival_ece"]["before"],
        "after": pytest.approx(0.08049, abs=1e-5),
    }
    error = position["debiased_error"]["before"]
    assert error["low"] <= error["value"] <= error["high"]


def test_sentences_say_what_changed_in_points() -> None:
    split, error, block, loss = comparison(3.54, 1.0).sentences()
    assert split.startswith("Fitted on 1,000 blocks, judged on 1,000 blocks: judged on the later")
    assert "8.0 points under revision 4, 5.0 with the new numbers" in error
    assert "debiased" in block
    assert loss == "The log loss of survival falls from 0.6696 to 0.6618 nats."
    same = judged(records(635), 1.0)
    rows = HeldOutRows(records(635), records(635), "prompt", 0.5, "salt", 3, 4)
    split, error = HeldOutComparison(0, same, same, rows).sentences()
    assert (
        split == "Fitted on 1,000 blocks of 3 prompts, judged on 1,000 blocks of 4 other prompts."
    )
    assert error.endswith("The fit found no other numbers.")
    assert "rises" in list(comparison(1.0, 3.54).sentences())[-1]
    assert "stays at" in list(comparison(1.0, 1.0001).sentences())[-1]


def test_versions_name_what_decides_the_numbers() -> None:
    found = code_versions()
    assert found["python"] == sys.version.split()[0]
    assert found["numpy"] == np.__version__
    assert all(found.values())


def test_slopes_are_judged_by_themselves_where_temperatures_stay() -> None:
    rows = records(635)
    split = HeldOutRows(rows, rows, "later_rows", 0.5)
    found = HeldOutComparison(4, judged(rows, 3.54), judged(rows, 1.0), split, "affine")
    assert found.to_dict()["form"] == "affine"
    assert "by slopes and intercepts against revision 4 falls" in found.verdict.reason
    assert "engines that apply temperatures alone keep them" in list(found.sentences())[1]
