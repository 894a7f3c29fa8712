"""The JSON documents that files and pages are made from: numbers with the sentences about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from calib.calibration import Calibration
from calib.canonical_json import plain_json
from monitoring.reports.evaluation_report import EvaluationReport
from monitoring.reports.fit_report import FitReport
from monitoring.reports.sentences import (
    evaluation_sentences,
    fit_sentences,
    headline,
    position_sentences,
    worth_sentences,
)
from monitoring.reports.throughput import Throughput

__all__ = ["EVALUATION_FORMAT", "evaluation_document", "fit_document"]

EVALUATION_FORMAT: Final = "dspark-calib/evaluation-report/1"


def fit_document(
    report: FitReport, *, notes: Sequence[str] = (), worth: Throughput | None = None
) -> dict[str, Any]:
    """A fit report as plain JSON, with sentences, notes on its input, and its worth.

    Args:
        report: of the fit.
        notes: what reading the telemetry had to say.
        worth: Θ of raw and calibrated confidence; left out when None.
    """
    return {
        **report.to_dict(),
        "notes": list(notes),
        "headline": headline(report.evaluation),
        "sentences": [*fit_sentences(report), *worth_sentences(worth)],
        **_worth(worth),
    }


def evaluation_document(
    report: EvaluationReport,
    calibration: Calibration,
    *,
    source: str,
    notes: Sequence[str] = (),
    worth: Throughput | None = None,
) -> dict[str, Any]:
    """An evaluation as plain JSON, with what was judged and the sentences about it.

    Args:
        report: of the evaluation.
        calibration: what was judged.
        source: where the rows come from.
        notes: what reading the telemetry had to say.
        worth: Θ of raw and calibrated confidence; left out when None.
    """
    document: dict[str, Any] = plain_json(
        {
            "format": EVALUATION_FORMAT,
            "source": source,
            "notes": list(notes),
            "calibration": calibration.to_dict(),
            "evaluation": report.to_dict(),
            "headline": headline(report),
            "sentences": [
                *evaluation_sentences(report),
                *position_sentences(calibration),
                *worth_sentences(worth),
            ],
            **_worth(worth),
        },
        "report",
    )
    return document


def _worth(worth: Throughput | None) -> dict[str, Any]:
    return {} if worth is None else {"throughput": plain_json(worth.to_dict(), "throughput")}
