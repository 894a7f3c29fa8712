from __future__ import annotations

import json
import pickle

from calib.metrics import calibration_metrics
from calib.position_metrics import PositionMetrics
from calib.reliability_bins import ReliabilityBin


def test_to_dict_holds_every_field_as_plain_json() -> None:
    metrics = PositionMetrics(
        n=1,
        effective_n=1.0,
        sharpness=(0, 1),
        bins=(None, ReliabilityBin(0.7, 1.0, 1, 0.2, 1.0)),
        reasons={"ece": "too_few_rows"},
    )
    values = metrics.to_dict()
    assert list(values) == list(PositionMetrics.__dataclass_fields__)
    assert values["bins"] == [
        None,
        {
            "mean_prediction": 0.7,
            "mean_label": 1.0,
            "count": 1,
            "mean_label_low": 0.2,
            "mean_label_high": 1.0,
        },
    ]
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_every_null_has_a_reason() -> None:
    for rows in ([], [0.5], [0.5, 0.5], [0.1, 0.9, 0.9]):
        metrics = calibration_metrics(rows, [1.0] * len(rows))
        nulls = {name for name, value in metrics.to_dict().items() if value is None}
        assert nulls == set(metrics.reasons)


def test_travels_between_processes() -> None:
    metrics = calibration_metrics([0.1, 0.9, 0.9], [0, 1, 0])
    assert pickle.loads(pickle.dumps(metrics)) == metrics
