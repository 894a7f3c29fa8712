from __future__ import annotations

import json

import numpy as np
import pytest

from calib.calibration import Calibration
from calib.errors import FitRefusedError
from calib.records import AcceptanceRecords
from calib.throughput_document import (
    StudyRequest,
    analytic_curves,
    study_document,
    study_parts,
)
from calib.throughput_study import StudyRules
from tests.support.leaky_generator import simulate_leaky

LOADS = (4, 64)


def log(rows: int, seed: int) -> AcceptanceRecords:
    columns = simulate_leaky(rows, seed).records().columns()
    columns["domain"] = np.array(["chat", "code"] * (rows // 2), dtype=object)
    columns["request"] = np.array([f"r{row // 5}" for row in range(rows)], dtype=object)
    return AcceptanceRecords.from_columns(7, columns)


def test_the_curves_are_long_enough() -> None:
    curves = analytic_curves(LOADS, 7)
    assert list(curves) == ["smooth", "kneed", "staircase"]
    for curve in curves.values():
        assert len(curve.batch_tokens) == 64 * 8  # type: ignore[attr-defined]


def test_parts_share_no_request() -> None:
    records = log(400, 1)
    fit, judged, kept = study_parts(records)
    assert kept == "request"
    assert fit.request is not None
    assert judged.request is not None
    assert not set(fit.request.tolist()) & set(judged.request.tolist())
    other, whole, kept = study_parts(records, fit_on=log(100, 2))
    assert (len(other), len(whole), kept) == (100, 400, "another file")
    with pytest.raises(FitRefusedError, match="no usable row"):
        study_parts(records, fit_on=AcceptanceRecords.empty(7))


def test_a_document_is_plain_json_and_says_where_it_comes_from() -> None:
    curves = {"smooth": analytic_curves(LOADS, 7)["smooth"]}
    rules = StudyRules(loads=LOADS, replicates=40)
    request = StudyRequest(curves, rules, extra={"given": Calibration.identity(7)})
    document = study_document(log(3000, 3), request, source="log.parquet")
    json.dumps(document, allow_nan=False)
    assert document["rows"]["fit"] + document["rows"]["judged"] == document["rows"]["all"] == 3000
    assert document["outcomes"]["kind"] == "counted"
    cells = {(cell["load"], cell["arm"]): cell for cell in document["study"]["cells"]}
    assert cells[64, "given"]["theta"] == cells[64, "raw"]["theta"]
    assert cells[64, "given"]["gain"] == 0.0
    segments = document["segments"]
    assert segments["arm"] == "segmented"
    # Segments are looked at where the finest arm gains most.
    best = max(LOADS, key=lambda load: cells[load, "segmented"]["gain"])
    assert segments["load"] == best
    assert sum(value["rows"] for value in segments["values"]) <= document["rows"]["judged"]
