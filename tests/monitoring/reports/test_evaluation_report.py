from __future__ import annotations

import json

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.record_schema import Flag
from monitoring.reports.evaluation_report import evaluation_report
from tests.support.telemetry import TEMPERATURES, synthetic_records

TRUTH = Calibration.from_temperatures(TEMPERATURES, gamma=7)


def test_the_true_temperatures_win_in_every_slice_with_rows() -> None:
    report = evaluation_report(synthetic_records(6000), TRUTH, minimum_segment_rows=1500)
    compared = [part for part in report.segments if part.comparison is not None]
    assert len(compared) == 6
    for comparison in [report.overall, *(part.comparison for part in compared)]:
        assert comparison is not None
        raw = comparison.raw.report.conditional.mean.log_loss
        calibrated = comparison.calibrated.report.conditional.mean.log_loss
        assert raw is not None
        assert calibrated is not None
        assert calibrated < raw


def test_thin_slices_say_where_their_rows_are_counted() -> None:
    report = evaluation_report(synthetic_records(2000), TRUTH, minimum_segment_rows=400)
    cells = report.segments_by("domain", "sampling_temperature")
    assert [part.tags["domain"] for part in cells] == ["chat"] * 3 + ["code"] * 3 + ["math"] * 3
    assert all(part.comparison is None for part in cells)
    first = cells[0]
    assert first.pooled == f"pooled: {first.rows} rows, 400 needed; counted in domain=chat"
    wide = evaluation_report(synthetic_records(500), TRUTH, minimum_segment_rows=400)
    assert (wide.segments_by("domain")[0].pooled or "").endswith("counted in all rows")


def test_identity_is_judged_once() -> None:
    report = evaluation_report(synthetic_records(400), Calibration.identity(7))
    assert report.overall.raw is report.overall.calibrated


def test_excluded_rows_are_counted_and_left_out() -> None:
    records = synthetic_records(1000).with_flag(Flag.WARMUP, np.arange(100))
    report = evaluation_report(records, TRUTH)
    assert report.rows == 900
    assert report.excluded["warmup"] == 100
    assert report.overall.acceptance.rows == 900


def test_json_round_trip_without_nan() -> None:
    report = evaluation_report(synthetic_records(300, prompts=20), TRUTH)
    document = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert document["gamma"] == 7
    assert document["digest"] == TRUTH.digest
    assert document["leak"]["model"] == "manual"
    assert document["overall"]["acceptance"]["rows"] == 300
    assert document["soft_labels"]["inconsistent"] is False


@pytest.mark.slow
def test_leak_is_measured_with_the_conditional_model() -> None:
    records = synthetic_records(3000, leak=0.6)
    served = Calibration.from_temperatures([3.0] * 7, gamma=7)
    report = evaluation_report(records, served, conditional_model=TRUTH)
    alone = evaluation_report(records, TRUTH)
    assert report.leak == alone.leak
