"""Methods of a fit on files: the choice is the recalibration job's, and it says why."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from calib.prompt_split import DEFAULT_SALT, split_by_prompt
from calib.records import AcceptanceRecords
from calib.sequential_temperature_scaling import SequentialTemperatureScaling
from monitoring.challenger_fit import fit_challenger
from monitoring.held_out_rows import held_out_rows
from monitoring.recalibration_choice import RULE, RULE_ON_FEW_ROWS
from monitoring.recalibration_options import RecalibrationOptions
from monitoring.reports.fit_report import FitOptions, fit_report
from monitoring.reports.fitted_numbers import (
    FileMethod,
    choice_sentence,
    fitted_numbers,
    form_sentence,
    left_out_sentence,
)
from monitoring.reports.sentences import fit_sentences
from monitoring.reports.tables import reference_table
from tests.support.leaky_generator import TRUE_TEMPERATURES, simulate_leaky, trimmed_lengths


def rows(count: int, seed: int, *, leak: float = 0.0, trimmed: bool = False) -> AcceptanceRecords:
    """Blocks of twelve a prompt, over-confident by ``TRUE_TEMPERATURES``."""
    blocks = simulate_leaky(count, seed, partial=leak)
    records = blocks.records(trimmed_lengths(blocks.logits) if trimmed else None)
    prompts = np.array([f"prompt {index // 12}" for index in range(count)], dtype=object)
    return AcceptanceRecords.from_columns(7, {**records.columns(), "prompt": prompts})


def held_out_fit(records: AcceptanceRecords) -> AcceptanceRecords:
    """The rows that a report fits on."""
    return split_by_prompt(records, evaluation_share=0.5, salt=DEFAULT_SALT, column="prompt").fit


def test_numbers_are_those_of_the_recalibration_job() -> None:
    records = rows(3000, 5)
    report = fit_report(records, FitOptions(minimum_rows=300, minimum_segment_rows=10**6))
    job = fit_challenger(records, RecalibrationOptions(minimum_rows=300))
    assert report.choice == {**job.evidence["choice"], "segments": {"tried": False, "kept": False}}
    assert report.method == job.method == "survival"
    assert job.calibration is not None
    assert report.calibration.temperatures == job.calibration.temperatures
    assert report.calibration.slopes == job.calibration.slopes


@pytest.mark.parametrize("trimmed", [False, True])
def test_few_rows_and_trimmed_rows_find_the_truth_where_a_search_finds_noise(
    trimmed: bool,
) -> None:
    """Mean squared error of log T over three logs of 2,400 rows to fit on."""
    errors: dict[str, list[float]] = {"auto": [], "sts": []}
    for seed in range(3):
        parts = held_out_rows(rows(4800, seed, trimmed=trimmed))
        truth = np.log(TRUE_TEMPERATURES)
        options = FitOptions(minimum_rows=100)
        found = fitted_numbers(parts.fit, parts.judged, options)
        searched = SequentialTemperatureScaling(minimum_rows=100).fit_records(parts.fit)
        for name, calibration in (
            ("auto", found.calibration),
            ("sts", searched.calibration()),
        ):
            errors[name].append(float(np.mean((np.log(calibration.temperatures) - truth) ** 2)))
        assert found.choice is not None
        assert ("sts" in found.choice["refused"]) is trimmed
    assert np.mean(errors["auto"]) < 0.25 * np.mean(np.log(TRUE_TEMPERATURES) ** 2), errors
    assert np.mean(errors["auto"]) < (1.0 if trimmed else 0.5) * np.mean(errors["sts"]), errors


@pytest.mark.parametrize("method", ["affine", "survival"])
def test_methods_that_are_named_are_not_chosen(method: FileMethod) -> None:
    options = FitOptions(method=method, minimum_rows=100, minimum_segment_rows=10**6)
    report = fit_report(rows(1500, 3), options)
    assert (report.choice, report.method) == (None, method)
    assert report.to_dict()["choice"] is None
    assert not any(sentence.startswith("Method ") for sentence in fit_sentences(report))


def test_a_report_says_what_was_chosen_and_why() -> None:
    options = FitOptions(minimum_rows=100, minimum_segment_rows=10**6)
    report = fit_report(rows(1500, 3, trimmed=True), options)
    said = [sentence for sentence in fit_sentences(report) if sentence.startswith("Method ")]
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert said == [document["choice"]["sentence"]]
    assert (document["method"], document["choice"]["chosen"]) == ("auto", "survival")
    assert "not possible here: sts." in said[0]


def evidence(**changes: Any) -> dict[str, Any]:
    losses = {"temperature": 0.5, "affine": 0.4321, "survival": 0.43}
    return {
        "rule": RULE,
        "scored_rows": 12_345,
        "candidates": [{"method": name, "log_loss": loss} for name, loss in losses.items()],
        "refused": {},
        "best": "survival",
        "chosen": "survival",
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "its log loss is the smallest (0.4300 nats a label on 12,345 blocks"),
        (
            {"chosen": "affine"},
            "lies within one standard error of the smallest (survival, 0.4300)",
        ),
        (
            {"rule": RULE_ON_FEW_ROWS},
            "below 20,000 blocks it is taken unless held-out log loss is clearly against it "
            "(0.4300; temperature 0.5000, affine 0.4321 nats a label on 12,345 blocks",
        ),
        (
            {"rule": RULE_ON_FEW_ROWS, "chosen": "temperature", "best": "temperature"},
            "Method temperature (temperatures by conditional likelihood) was chosen: its log loss",
        ),
        ({"refused": {"sts": "trimmed"}}, "; not possible here: sts"),
    ],
)
def test_every_reason_has_its_sentence(changes: dict[str, Any], expected: str) -> None:
    assert expected in choice_sentence(evidence(**changes))


def test_what_became_of_slopes_and_intercepts_is_said() -> None:
    assert form_sentence({"temperatures": 0.2}, affine=False) is None
    losses = {"temperatures": 0.2073, "affine": 0.206}
    kept = form_sentence(losses, affine=True)
    assert kept is not None
    assert "log loss of survival 0.2060 nats, 0.2073 by the temperatures" in kept
    dropped = form_sentence({"temperatures": 0.206, "affine": 0.2073}, affine=False)
    assert dropped is not None
    assert "left out: they would raise the log loss of survival from 0.2060 to 0.2073" in dropped


def test_a_report_says_what_became_of_them() -> None:
    options = FitOptions(method="affine", minimum_rows=100, minimum_segment_rows=10**6)
    report = fit_report(rows(9000, 3), options)
    said = form_sentence(report.form_losses, affine=report.calibration.slopes is not None)
    assert said is not None
    assert f"{said}." in list(fit_sentences(report))
    assert report.to_dict()["form_losses"] == dict(report.form_losses)
    assert reference_table(report).index.tolist()[:2] == ["raw", "temperatures"]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("default", "Method sts is for fully verified blocks and left out {} of {} blocks, which "),
        ("parity", "Method sts is for fully verified blocks and left out {} of {} blocks; methods"),
    ],
)
def test_rows_that_a_search_leaves_out_are_counted(mode: Any, expected: str) -> None:
    records = rows(1500, 3, trimmed=True)
    options = FitOptions("sts", mode, minimum_rows=100, minimum_segment_rows=10**6)
    report = fit_report(records, options)
    short = int((held_out_fit(records).verified < 7).sum())
    assert report.left_out == report.to_dict()["left_out"] == short > 0
    words = expected.format(f"{short:,}", f"{report.split.fit_rows:,}")
    (said,) = [each for each in fit_sentences(report) if each.startswith("Method sts")]
    assert said.startswith(words)
    assert said.endswith("methods auto and survival read them all.")


@pytest.mark.parametrize("method", ["temperature", "affine", "survival", "auto"])
def test_other_methods_leave_no_row_out(method: FileMethod) -> None:
    options = FitOptions(method, minimum_rows=100, minimum_segment_rows=10**6)
    report = fit_report(rows(1500, 3, trimmed=True), options)
    assert report.left_out == 0
    assert not any("left out" in said for said in fit_sentences(report) if "Method sts" in said)


def test_rows_that_the_chosen_search_left_out_are_said_too() -> None:
    said = left_out_sentence(12, FitOptions(), 9000)
    assert said is not None
    assert said.startswith("Method sts left out 12 of 9,000 blocks, which were trimmed or may ")
    assert left_out_sentence(0, FitOptions(), 9000) is None
