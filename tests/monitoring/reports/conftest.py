"""One fit shared by the report tests: everything below reads it, nothing changes it."""

from __future__ import annotations

import pytest

from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from tests.support.telemetry import synthetic_records


@pytest.fixture(scope="session")
def fitted() -> FitReport:
    """A fit with references on 8,000 synthetic blocks of known temperatures and some leak."""
    records = synthetic_records(8000, prompts=300, leak=0.6, seed=3)
    options = FitOptions(method="sts", minimum_segment_rows=600, with_references=True)
    return fit_report(records, options, source="synthetic")
