from __future__ import annotations

import json

from api.dashboard.reliability_panels import panels_of
from api.dashboard.report_document import ReportDocument, read_report

POSITION = {
    "n": 100,
    "mean_prediction": 0.44,
    "mean_label": 0.4,
    "ece": 0.04,
    "null_level": 0.01,
    "bins": [{"count": 100, "mean_prediction": 0.44, "mean_label": 0.4}],
}


def report(raw: object, served: object) -> ReportDocument:
    sides = {
        "raw": {"survival": {"positions": [raw]}},
        "calibrated": {"survival": {"positions": [served]}},
    }
    document = {"revision": 1, "created_at": "x", "evaluation": {"overall": sides}}
    found = read_report(json.dumps(document).encode())
    if found is None:
        raise AssertionError("unreadable")
    return found


def test_a_panel_says_in_words_what_it_shows() -> None:
    (panel,) = panels_of(report(POSITION | {"ece": 0.09}, POSITION), "survival")
    assert panel.is_recalibrated
    assert (
        "Reliability at position 1, 100 rows: mean confidence 0.440, observed 0.400, overconfident "
        "by 4.0 points. ECE 4.0 points, before recalibration 9.0; a perfect model would show 1.0."
    ) in panel.svg
    assert len(panel.bins) == 1


def test_identity_has_one_curve() -> None:
    (panel,) = panels_of(report(POSITION, POSITION), "survival")
    assert not panel.is_recalibrated
    assert "point calibrated" not in panel.svg
    assert "before recalibration" not in panel.svg


def test_positions_without_rows_have_a_panel_and_other_views_none() -> None:
    (panel,) = panels_of(report({}, {}), "survival")
    assert "no rows" in panel.svg
    assert panels_of(report(POSITION, POSITION), "conditional") == []
    assert panels_of(None, "survival") == []
