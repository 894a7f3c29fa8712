from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from monitoring.reports.evaluation_report import evaluation_report
from monitoring.reports.fit_report import FitReport, fit_report
from monitoring.reports.terminal import WIDTH, evaluation_view, fit_view
from tests.support.telemetry import synthetic_columns, synthetic_records


def printed(view: object, width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(view)
    return stream.getvalue()


@pytest.mark.parametrize("width", [80, WIDTH, 160])
def test_no_number_is_cut_off(fitted: FitReport, width: int) -> None:
    text = printed(fit_view(fitted, width=width), width)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "nan" not in text.lower()
    for title in ("Survival a_k", "Conditional c_k", "Survival by domain", "What the next logit"):
        assert title in text


@pytest.mark.parametrize("width", [80, WIDTH])
def test_errors_of_two_digits_fit(width: int) -> None:
    columns = synthetic_columns(30_000 // 10)
    columns["confidence_logits"] = columns["confidence_logits"] + np.float32(2.0)
    records = AcceptanceRecords.from_columns(7, columns)
    hotter = Calibration.from_temperatures([18.123] * 7, gamma=7)
    view = evaluation_view(evaluation_report(records, hotter), hotter, width=width)
    text = printed(view, width)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_sentences_come_before_tables(fitted: FitReport) -> None:
    text = printed(fit_view(fitted), WIDTH)
    assert text.startswith("Fitted on ")
    assert text.index("Mean survival ECE") < text.index("Survival a_k")


def test_thin_slices_read_pooled(fitted: FitReport) -> None:
    text = printed(fit_view(fitted), WIDTH)
    assert text.count("pooled") >= 10  # nine cells and the note
    assert "pooled: fewer than 600 rows" in text


def test_an_evaluation_without_slices_or_next_positions() -> None:
    identity = Calibration.identity(1)
    records = synthetic_records(200, gamma=1, prompts=1)
    text = printed(evaluation_view(evaluation_report(records, identity), identity), WIDTH)
    assert "Survival by domain" not in text
    assert "What the next logit" not in text


def test_a_refused_fit_is_shown_too() -> None:
    text = printed(fit_view(fit_report(synthetic_records(300, prompts=30))), WIDTH)
    assert text.startswith("Nothing is published.")
