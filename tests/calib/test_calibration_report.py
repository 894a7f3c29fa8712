from __future__ import annotations

import json

import pytest

from calib.calibration import Calibration
from calib.calibration_report import MetricMeans, ViewReport
from calib.evaluation import evaluate
from calib.position_metrics import PositionMetrics
from tests.support.telemetry import GAMMA, synthetic_records


def _position(n: int, ece: float | None) -> PositionMetrics:
    return PositionMetrics(n=n, effective_n=float(n), ece=ece)


def test_means_skip_nulls_and_weigh_by_rows() -> None:
    positions = [_position(30, 0.1), _position(10, 0.3), _position(60, None)]
    assert MetricMeans.over(positions, weighted=False).ece == pytest.approx(0.2)
    assert MetricMeans.over(positions, weighted=True).ece == pytest.approx(0.15)
    assert MetricMeans.over(positions, weighted=True).auc is None
    assert MetricMeans.over([], weighted=False).ece is None


def test_view_is_indexed_by_position() -> None:
    view = ViewReport.of([_position(1, 0.1), _position(2, 0.2)])
    assert (len(view), view[1].n, [m.n for m in view]) == (2, 2, [1, 2])


def test_report_is_plain_json_with_both_views_named() -> None:
    report = evaluate(synthetic_records(300), Calibration.identity(GAMMA))
    values = report.to_dict()
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    for view in ("conditional", "survival"):
        assert len(values[view]["positions"]) == GAMMA
        assert set(values[view]) == {"positions", "mean", "weighted_mean"}
    assert values["bin_rule"] == "equal_width: min(floor(p * n_bins), n_bins - 1) in fp32"
