"""A message as tests use it."""

from __future__ import annotations

from typing import Any

from monitoring.alerts.messages import AlertMessage, alert_message
from monitoring.store.alert_outbox import Notice

NOW = 1_795_996_800.0  # 2026-11-30T00:00:00Z
BASE = "https://calib.example.org/"


def event(**changes: Any) -> dict[str, Any]:
    details = {
        "position": 3,
        "segment": {"domain": "chat"},
        "evidence_log10": 7.25,
        "threshold_log10": 6.0,
        "mean_residual": -0.041,
        "theta_loss": 0.018,
        "since": "2026-11-29T23:40:00Z",
    }
    return {
        "event": 12,
        "drafter": "code",
        "kind": "drift",
        "severity": "critical",
        "title": "code drifts",
        "dedup_key": "drift/code",
        "details": details,
        "opened_at": NOW - 600.0,
        "resolved_at": None,
        "count": 1,
    } | changes


def message(notice: Notice = "opened", **changes: Any) -> AlertMessage:
    return alert_message(notice, event(**changes), base_url=BASE)
