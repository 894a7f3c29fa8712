"""The few numbers of a report that are told over time: small, whatever the report's size.

No MLflow here: this runs where the report is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["report_numbers"]

_VIEWS = ("conditional", "survival")


def report_numbers(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the tracking server is told of a report: ``{"metrics": {name: number or null}, …}``.

    Args:
        document: a telemetry report as :mod:`monitoring.telemetry_report` makes it.
    """
    numbers: dict[str, Any] = {"stored_rows": _at(document, "telemetry", "stored_rows")}
    evaluation = document.get("evaluation")
    if isinstance(evaluation, Mapping):
        numbers["rows"] = evaluation.get("rows")
        overall = evaluation.get("overall") or {}
        for view in _VIEWS:
            for side in ("raw", "calibrated"):
                mean = _at(overall, side, view, "weighted_mean")
                numbers[f"{view}_ece/{side}"] = _at(mean, "ece")
            positions = _at(overall, "calibrated", view, "positions") or ()
            for index, entry in enumerate(positions):
                numbers[f"{view}_ece/position_{index + 1:02d}"] = _at(entry, "ece")
                if view == "conditional":
                    numbers[f"auc/position_{index + 1:02d}"] = _at(entry, "auc")
        numbers["survival_error/debiased"] = _at(
            overall, "calibrated", "block", "survival", "value"
        )
        numbers["accepted_length"] = _at(overall, "acceptance", "accepted_length")
    sentences = document.get("sentences") or ()
    judged = _at(document, "judged", "rows")
    return {"metrics": numbers, "sentences": [str(s) for s in sentences], "judged": judged}


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
