from __future__ import annotations

import math

from monitoring.mlflow_mirror.numbers import Metric, Metrics


def test_r77_what_has_no_number_is_left_out_by_name() -> None:
    metrics = Metrics()
    metrics.add("ece", None)
    metrics.add_positions("auc", [0.7, math.nan, math.inf, -math.inf, None, "0.5", True])
    metrics.add("rows", 3)
    assert metrics.found == [Metric("auc", 0.7, 1), Metric("rows", 3.0, 0)]
    assert metrics.left_out == ["ece", "auc[2]", "auc[3]", "auc[4]", "auc[5]", "auc[6]", "auc[7]"]


def test_fields_of_positions_have_the_position_as_their_step() -> None:
    metrics = Metrics()
    positions = [
        {"ece": {"before": 0.02, "after": 0.01}, "error": {"after": {"value": 0.5}}, "rows": 9},
        {"ece": {"before": 0.03, "after": None}, "error": {"after": {"value": 0.6}}, "rows": 8},
    ]
    metrics.add_fields("held_out", positions, ["ece", "error", "rows", "never_measured"])
    assert {(m.key, m.step): m.value for m in metrics.found} == {
        ("held_out/ece/before", 1): 0.02,
        ("held_out/ece/before", 2): 0.03,
        ("held_out/ece/after", 1): 0.01,
        ("held_out/error/after", 1): 0.5,
        ("held_out/error/after", 2): 0.6,
        ("held_out/rows", 1): 9.0,
        ("held_out/rows", 2): 8.0,
    }
    assert "held_out/ece/after[2]" in metrics.left_out
