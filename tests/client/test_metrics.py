"""Metrics are plain values, and all of them are there from the beginning."""

from __future__ import annotations

import json
import re

from dspark_calib_client import CalibrationClient
from dspark_calib_client import metrics as metrics_module

CLIENT = {"drafter": "d", "gamma": 2, "engine_id": "e"}


def test_they_are_there_before_anything_happens() -> None:
    client = CalibrationClient("http://127.0.0.1:9", **CLIENT)  # type: ignore[arg-type]
    found = client.metrics()
    assert (found["state"], found["state_number"], found["source"]) == ("fallback", 2, "identity")
    assert found["polls"] == found["rows_delivered"] == found["running"] == 0
    assert found["age_seconds"] is None
    json.dumps(found, allow_nan=False)


def test_every_metric_is_documented() -> None:
    text = metrics_module.__doc__ or ""
    for name in metrics_module._ALWAYS_PRESENT:
        assert re.search(rf"\b{name}\b", text), name
