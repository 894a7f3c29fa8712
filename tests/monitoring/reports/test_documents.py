from __future__ import annotations

import json

import pytest

from calib.calibration import Calibration
from monitoring.reports.documents import evaluation_document, fit_document
from monitoring.reports.evaluation_report import evaluation_report
from monitoring.reports.fit_report import FitReport
from monitoring.reports.sentences import fit_sentences, headline
from monitoring.reports.throughput import Throughput
from tests.support.telemetry import synthetic_records


@pytest.mark.slow
def test_a_fit_with_its_words(fitted: FitReport) -> None:
    found = fit_document(fitted, notes=("a note",), worth=Throughput(None, "unknown"))
    assert found["format"] == "dspark-calib/fit-report/1"
    assert found["sentences"] == fit_sentences(fitted)
    assert found["headline"] == headline(fitted.evaluation)
    assert (found["notes"], found["throughput"]) == (["a note"], {"reason": "unknown"})
    assert "throughput" not in fit_document(fitted)
    json.dumps(found, allow_nan=False)


def test_an_evaluation_says_what_it_judged() -> None:
    model = Calibration.from_temperatures([1.5, 1.5], gamma=2)
    found = evaluation_document(
        evaluation_report(synthetic_records(300, gamma=2), model), model, source="rows"
    )
    assert found["format"] == "dspark-calib/evaluation-report/1"
    assert found["calibration"]["temperatures"] == [1.5, 1.5]
    assert found["evaluation"]["digest"] == found["calibration"]["digest"]
    assert found["evaluation"]["overall"]["lengths"]["rows"] == 300
    json.dumps(found, allow_nan=False)
