"""The table of metrics keeps Prometheus' rules and the service's bound on labels."""

from __future__ import annotations

import re

from monitoring.metrics_catalogue import METRICS, PREFIX

ALLOWED_LABELS = {
    "alias",
    "calibration",
    "detector",
    "drafter",
    "kind",
    "level",
    "outcome",
    "position",
    "receiver",
    "revision",
    "scope",
    "severity",
    "status",
    "version",
    "view",
}


def test_names_are_unique_and_follow_prometheus() -> None:
    names = [spec.full_name for spec in METRICS]
    assert len(set(names)) == len(names)
    for spec in METRICS:
        assert re.fullmatch(r"dspark_calibration_[a-z][a-z_]*", spec.full_name)
        assert spec.full_name.startswith(PREFIX)
        assert (spec.kind == "counter") == spec.name.endswith("_total"), spec.name
        assert spec.help.endswith("."), spec.name
        assert not re.search(r"_(ms|milliseconds|percent|bytes_total|count)$", spec.name)


def test_no_label_grows_with_traffic() -> None:
    """Engines, requests, tenants and segments are nobody's labels."""
    assert {label for spec in METRICS for label in spec.labels} == ALLOWED_LABELS


def test_names_that_people_expect_are_there() -> None:
    expected = {
        "ece_ratio",
        "acceptance_ratio",
        "confidence_ratio",
        "temperature",
        "drift_log_e_value",
        "telemetry_rows_total",
        "revision_info",
        "fit_duration_seconds",
        "engine_last_poll_timestamp_seconds",
        "polls_total",
    }
    assert expected <= {spec.name for spec in METRICS}
