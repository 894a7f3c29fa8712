from __future__ import annotations

import json
from pathlib import Path

import pytest

from api.output import print_json, write_calibration, write_report
from calib.calibration import Calibration
from calib.records import AcceptanceRecords
from monitoring.reports.evaluation_report import evaluation_report
from monitoring.reports.fit_report import FitOptions, FitReport, fit_report
from tests.support.sglang_calibration import load_as_sglang
from tests.support.shifted_head import shifted_head
from tests.support.telemetry import synthetic_columns, synthetic_records


@pytest.fixture(scope="module")
def fitted() -> FitReport:
    records = synthetic_records(2000, gamma=2)
    return fit_report(records, FitOptions(method="sts", minimum_rows=100), source="a.parquet")


def test_sglang_loads_the_file_and_reads_held_out_errors(fitted: FitReport, tmp_path: Path) -> None:
    files = write_calibration(fitted, tmp_path / "new" / "folder")
    found = load_as_sglang(files["SGLang's STS file"].read_bytes(), 2)
    assert tuple(found.temperatures) == fitted.calibration.temperatures
    assert (found.dataset, found.num_samples) == ("a.parquet", fitted.split.fit_rows)
    overall = fitted.evaluation.overall
    assert found.ece_before == [metrics.ece for metrics in overall.raw.report.survival]
    assert found.ece_after == [metrics.ece for metrics in overall.calibrated.report.survival]


def test_a_null_error_is_left_out_because_sglang_refuses_it(tmp_path: Path) -> None:
    columns = synthetic_columns(2000, gamma=3) | {"soft_labels": None, "flags": None}
    columns["verified"] = columns["verified"].clip(max=2)  # position 3 is never verified
    columns["accepted"] = columns["accepted"].clip(max=columns["verified"])
    records = AcceptanceRecords.from_columns(3, columns)
    report = fit_report(records, FitOptions(method="sts", minimum_rows=100))
    data = write_calibration(report, tmp_path)["SGLang's STS file"].read_bytes()
    found = load_as_sglang(data, 3)
    assert found.ece_before == []
    assert found.temperatures[2] == 1.0


def test_calibration_is_canonical_and_comes_back(fitted: FitReport, tmp_path: Path) -> None:
    data = write_calibration(fitted, tmp_path)["calibration"].read_bytes()
    assert Calibration.from_json(data) == fitted.calibration
    assert data == fitted.calibration.to_json() + b"\n"


@pytest.mark.slow
def test_report_and_figures(tmp_path: Path) -> None:
    columns = synthetic_columns(900, gamma=2)
    odd = {"math": "../../etc/passwd", "code": "C++ / Ω", "chat": "chat"}
    columns["domain"] = [odd[name] for name in columns["domain"]]
    records = AcceptanceRecords.from_columns(2, columns)
    report = evaluation_report(records, Calibration.identity(2), minimum_segment_rows=100)
    files = write_report({"a": 1, "b": None}, report, tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "ece_c.png",
        "ece_chat.png",
        "ece_etc-passwd.png",
        "reliability.png",
        "report.html",
        "report.json",
    ]
    assert {path.name for path in files.values()} == set(names)
    assert json.loads((tmp_path / "report.json").read_bytes()) == {"a": 1, "b": None}


def test_a_nan_in_a_report_is_a_fault_of_ours(fitted: FitReport, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_report({"a": float("nan")}, fitted.evaluation, tmp_path)


def test_json_names_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": 1}, {"report": Path("out/report.json")})
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"a": 1, "files": {"report": "out/report.json"}}


def test_sglangs_file_of_slopes_alone_promises_nothing(tmp_path: Path) -> None:
    """It holds ones, so its errors after are those before, whatever slopes and intercepts reach."""
    report = fit_report(shifted_head(), FitOptions(method="affine"))
    assert report.refusal is None
    data = write_calibration(report, tmp_path)["SGLang's STS file"].read_bytes()
    found = load_as_sglang(data, 2)
    assert list(found.temperatures) == [1.0, 1.0]
    assert found.ece_before
    assert found.ece_after == found.ece_before
    assert json.loads(data)["status"] == "partial"
