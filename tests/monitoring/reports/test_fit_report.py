from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from calib.errors import ConfigurationError, FitRefusedError, RecordError
from calib.formats.arrow import read_parquet
from calib.record_schema import Flag
from calib.records import AcceptanceRecords
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from calib.shipped import shipped_telemetry_early
from calib.statuses import Refusal, ServingStatus
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from monitoring.reports.fitted_numbers import FileMethod
from monitoring.reports.sentences import fit_sentences
from tests.support.shifted_head import shifted_head
from tests.support.telemetry import TEMPERATURES, synthetic_columns, synthetic_records

QUICK = FitOptions(method="sts", minimum_rows=100)


def test_fit_and_evaluation_share_no_prompt(fitted: FitReport) -> None:
    split = fitted.split
    assert (split.kind, split.in_sample) == ("prompt", False)
    assert split.fit_rows + split.evaluation_rows == 8000
    assert split.fit_keys is not None
    assert split.evaluation_keys is not None
    assert split.fit_keys + split.evaluation_keys == 300
    assert fitted.evaluation.rows == split.evaluation_rows
    assert fitted.evaluation.clusters == split.evaluation_keys


def test_numbers_are_those_of_the_estimator_on_the_fit_part() -> None:
    records = synthetic_records(3000)
    report = fit_report(records, QUICK)
    prompts = np.unique(records.prompt.astype(str))  # type: ignore[union-attr]
    from calib.prompt_split import evaluation_keys

    held = evaluation_keys(set(prompts.tolist()), 0.5, QUICK.salt)
    part = records.select([prompt not in held for prompt in records.prompt])  # type: ignore[union-attr]
    direct = SequentialTemperatureScaling(minimum_rows=100).fit_records(part).calibration()
    assert report.calibration.temperatures == direct.temperatures


def test_calibration_helps_on_other_prompts(fitted: FitReport) -> None:
    raw = fitted.evaluation.overall.raw.block["survival"]
    calibrated = fitted.evaluation.overall.calibrated.block["survival"]
    assert raw.low is not None
    assert calibrated.value is not None
    assert calibrated.value < raw.low
    assert fitted.verdict is not None
    assert fitted.verdict.replace
    assert fitted.refusal is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (FitOptions(method="temperature", minimum_rows=100), 0.25),
        (FitOptions(method="sts", mode="parity", minimum_rows=100), 0.6),
        (FitOptions(method="sts", minimum_rows=100, split_column="request"), 0.6),
    ],
)
def test_methods_find_the_true_temperatures(options: FitOptions, tolerance: float) -> None:
    report = fit_report(synthetic_records(8000, prompts=300), options)
    found = np.log(report.calibration.temperatures[:4]) - np.log(TEMPERATURES[:4])
    assert np.abs(found).max() < tolerance
    assert report.calibration.method == options.method
    assert report.split.kind == options.split_column


def test_same_rows_when_no_column_splits() -> None:
    options = FitOptions(method="sts", split_column=None, minimum_rows=50)
    report = fit_report(synthetic_records(2000), options)
    assert report.split.in_sample
    assert report.split.fit_rows == report.split.evaluation_rows == 2000


def test_other_files_to_judge_on_are_not_split() -> None:
    records = synthetic_records(2000)
    other = synthetic_columns(1000, seed=9)
    other["prompt"] = [f"other {index}" for index in other["prompt"]]
    judged = AcceptanceRecords.from_columns(7, other)
    report = fit_report(records, QUICK, evaluate_on=judged)
    assert (report.split.kind, report.split.fit_rows, report.evaluation.rows) == (
        "files",
        2000,
        1000,
    )
    with pytest.raises(RecordError, match="120 prompts that were fitted on"):
        fit_report(records, QUICK, evaluate_on=records)
    with pytest.raises(RecordError, match=r"evaluate_on\.gamma: got 3"):
        fit_report(records, QUICK, evaluate_on=synthetic_records(100, gamma=3))


def test_references_are_judged_on_the_same_rows(fitted: FitReport) -> None:
    assert list(fitted.references) == ["isotonic", "platt"]
    for judgement in fitted.references.values():
        assert judgement.report.n_rows == fitted.evaluation.rows


def test_result_is_a_function_of_the_rows() -> None:
    """Same rows, same report, to the last byte; the order of the rows does not matter."""
    records = synthetic_records(1500)
    order = np.random.default_rng(0).permutation(1500)
    first = fit_report(records, QUICK)
    again = fit_report(records, QUICK)
    shuffled = fit_report(records.select(order), QUICK)
    assert json.dumps(first.to_dict()) == json.dumps(again.to_dict())
    assert first.calibration == shuffled.calibration
    assert pickle.loads(pickle.dumps(first)).calibration == first.calibration


def test_json_has_no_nan_and_names_its_format(fitted: FitReport) -> None:
    document = json.loads(json.dumps(fitted.to_dict(), allow_nan=False))
    assert document["format"] == "dspark-calib/fit-report/1"
    assert document["calibration"]["digest"] == fitted.calibration.digest
    assert set(document["references"]) == {"isotonic", "platt"}
    assert document["refusal"] is None
    assert document["split"]["in_sample"] is False


def accepting_all() -> AcceptanceRecords:
    columns = synthetic_columns(400)
    columns["accepted"] = columns["verified"]
    del columns["soft_labels"]
    return AcceptanceRecords.from_columns(7, columns)


def test_one_class_publishes_nothing_and_says_so() -> None:
    report = fit_report(accepting_all(), QUICK)
    assert report.calibration.status is ServingStatus.INSUFFICIENT
    assert report.refusal is not None
    words = "insufficient: no position has a number of its own. Position 1: All "
    assert report.refusal.startswith(words)
    json.dumps(report.to_dict(), allow_nan=False)
    assert fit_report(accepting_all(), FitOptions(minimum_rows=100)).refusal == report.refusal


def test_too_few_rows_publish_nothing() -> None:
    report = fit_report(synthetic_records(400))
    assert report.refusal is not None
    assert "1000 are needed" in report.refusal


@pytest.mark.slow
def test_a_calibrated_head_keeps_its_numbers() -> None:
    """Logits that need no temperature: a fit that does not help on other prompts is refused."""
    columns = synthetic_columns(3000, seed=4)
    columns["confidence_logits"] = columns["confidence_logits"] / np.array(TEMPERATURES)
    refusals = []
    for seed in range(4):
        rows = AcceptanceRecords.from_columns(7, columns)
        report = fit_report(rows, replace(QUICK, salt=str(seed)))
        refusals.append(report.refusal)
    assert any(refusal and refusal.startswith("not_better") for refusal in refusals)


def spoil(name: str, values: Any) -> AcceptanceRecords:
    return AcceptanceRecords.from_columns(7, synthetic_columns(300) | {name: values})


@pytest.mark.parametrize("method", ["auto", "sts", "affine"])
def test_probabilities_are_refused(method: FileMethod) -> None:
    probabilities = np.random.default_rng(0).random((300, 7))
    with pytest.raises(FitRefusedError) as caught:
        fit_report(spoil("confidence_logits", probabilities), FitOptions(method=method))
    assert caught.value.status == Refusal.LOOKS_LIKE_PROBABILITIES


def test_inconsistent_soft_labels_are_refused() -> None:
    with pytest.raises(FitRefusedError) as caught:
        fit_report(spoil("soft_labels", np.full((300, 7), 0.97)))
    assert caught.value.status == Refusal.LABEL_INCONSISTENT


def test_rows_without_a_split_column_name_the_fallback() -> None:
    with pytest.raises(RecordError, match="column='request'"):
        fit_report(spoil("prompt", None))


def test_nothing_usable_counts_why() -> None:
    records = synthetic_records(50).with_flag(Flag.WARMUP, np.arange(50))
    with pytest.raises(FitRefusedError, match="'warmup': 50"):
        fit_report(records)


def test_one_row_is_refused() -> None:
    with pytest.raises(FitRefusedError, match="1 distinct value"):
        fit_report(synthetic_records(1))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "segments"},
        {"mode": "fast"},
        {"method": "temperature", "mode": "parity"},
        {"mode": "parity"},
    ],
)
def test_options_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        FitOptions(**options)


def test_share_out_of_range() -> None:
    with pytest.raises(ConfigurationError, match="evaluation_share"):
        fit_report(synthetic_records(100), FitOptions(evaluation_share=1.5))


@pytest.mark.parametrize("shift", [0.2, 0.3])
def test_a_head_that_no_temperature_mends_is_published_with_slopes_alone(shift: float) -> None:
    """A small shift leaves every temperature within the tolerance; a larger one does not."""
    report = fit_report(shifted_head(shift=shift), FitOptions(method="affine"))
    assert report.refusal is None
    assert report.calibration.temperatures == (1.0, 1.0)
    assert report.calibration.intercepts == pytest.approx((-shift,) * 2, abs=0.1)
    assert report.calibration.status is ServingStatus.PARTIAL
    assert report.evaluation.form == report.to_dict()["evaluation"]["form"] == "affine"
    assert report.form_losses["affine"] < report.form_losses["temperatures"]
    said = " ".join(fit_sentences(report))
    assert "No temperature fits, and slopes and intercepts do" in said
    assert "raw confidence (T = 1" in said
    left = report.evaluation.overall.calibrated.report.survival.weighted_mean
    assert left.ece is not None
    assert left.null_level is not None
    assert left.ece < left.null_level + 0.005


def test_the_older_build_is_published_by_its_slopes() -> None:
    records = read_parquet(shipped_telemetry_early(), 7)
    found = fit_report(records, FitOptions(minimum_segment_rows=10**6))
    assert found.refusal is None
    calibration = found.calibration
    assert set(calibration.temperatures) == {1.0}
    assert calibration.intercepts is not None
    assert calibration.intercepts[0] == pytest.approx(-0.5, abs=0.1)  # says .50, is .39
    assert calibration.intercepts[2:] == (0.0,) * 5
    said = " ".join(fit_sentences(found))
    assert (
        "The slope of positions 3, 4, 5, 6, 7 is 1/T, the intercept 0. Position 3: 484 rows" in said
    )
    overall = found.evaluation.overall
    raw, after = (side.report.survival.weighted_mean for side in (overall.raw, overall.calibrated))
    assert raw.ece is not None
    assert after.ece is not None
    assert after.ece < 0.5 * raw.ece


def test_slopes_that_are_no_clear_gain_are_refused_in_words_of_both_forms() -> None:
    records = shifted_head(2400, 0.15, seed=1)
    report = fit_report(records, FitOptions(method="survival", minimum_rows=100))
    assert report.refusal is not None
    assert "Slopes and intercepts are not clearly better on held-out rows either" in report.refusal
    said = " ".join(fit_sentences(report))
    assert "are served" not in said
