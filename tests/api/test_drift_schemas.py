"""What is served before the loop has read a row names the levels that the loop then uses."""

from __future__ import annotations

import json

from api.drift_schemas import collecting_document
from monitoring.detectors.levels import ACT_THRESHOLD, WARN_THRESHOLD


def test_levels_are_those_of_the_detectors() -> None:
    found = json.loads(collecting_document("d", revision=0, publication=1, published_at=0.0))
    assert found["levels"] == {
        "warn": {
            "threshold": WARN_THRESHOLD,
            "false_alarms_per_million_rows": 1e6 / WARN_THRESHOLD,
        },
        "act": {"threshold": ACT_THRESHOLD, "false_alarms_per_million_rows": 1e6 / ACT_THRESHOLD},
    }
    assert found["updated_at"] == "1970-01-01T00:00:00.000Z"
