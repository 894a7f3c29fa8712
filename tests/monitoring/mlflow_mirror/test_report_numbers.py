from __future__ import annotations

from typing import Any

from monitoring.mlflow_mirror.report_numbers import report_numbers


def side(*eces: float | None) -> dict[str, Any]:
    positions = [{"ece": ece, "auc": 0.7, "bins": [None]} for ece in eces]
    view = {"positions": positions, "weighted_mean": {"ece": 0.05}}
    return {"conditional": view, "survival": view, "block": {"survival": {"value": 0.02}}}


def report() -> dict[str, Any]:
    return {
        "telemetry": {"stored_rows": 100},
        "judged": {"rows": "held_out"},
        "sentences": ["Raw is overconfident."],
        "evaluation": {
            "rows": 50,
            "overall": {
                "raw": side(0.1, 0.2),
                "calibrated": side(0.01, None),
                "acceptance": {"accepted_length": 1.5},
            },
        },
    }


def test_few_numbers_of_a_report_are_told_nulls_included() -> None:
    told = report_numbers(report())
    numbers = told["metrics"]
    assert numbers["rows"] == 50
    assert numbers["survival_ece/raw"] == 0.05
    assert numbers["survival_ece/position_01"] == 0.01
    assert numbers["survival_ece/position_02"] is None  # said to be missing, not forgotten
    assert numbers["auc/position_02"] == 0.7
    assert numbers["accepted_length"] == 1.5
    assert told["judged"] == "held_out"
    assert told["sentences"] == ["Raw is overconfident."]


def test_a_report_without_an_evaluation_tells_how_much_is_stored() -> None:
    told = report_numbers({"telemetry": {"stored_rows": 0}, "evaluation": None})
    assert told["metrics"] == {"stored_rows": 0}
