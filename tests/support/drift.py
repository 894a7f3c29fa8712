"""A drift document as the worker's loop writes it, for tests of those who read it."""

from __future__ import annotations

from typing import Any

__all__ = ["drift_values"]

_SINCE = "2026-11-29T12:00:00.000Z"


def drift_test(scope: str, evidence: float, status: str, **changes: Any) -> dict[str, Any]:
    """One test of the document."""
    values: dict[str, Any] = {
        "scope": scope,
        "position": None,
        "segment": None,
        "detector": "likelihood_ratio",
        "quantity": "conditional",
        "evidence": 10.0**evidence,
        "evidence_log10": evidence,
        "threshold_log10": {"warn": 5.0, "act": 6.0},
        "status": status,
        "rows": 12_000,
        "tolerance": 0.01,
        "mean_residual": None,
        "change_point": None if status == "calm" else {"row": 900, "since": _SINCE},
    }
    return values | changes


def drift_values(drafter: str, **changes: Any) -> dict[str, Any]:
    """A document in which position 2 has drifted."""
    values: dict[str, Any] = {
        "drafter": drafter,
        "revision": 2,
        "publication": 3,
        "status": "drift",
        "updated_at": "2026-11-29T12:01:00.000Z",
        "consumed_through": 41,
        "rows": 12_000,
        "rows_total": 50_000,
        "levels": {
            "warn": {"threshold": 1e5, "false_alarms_per_million_rows": 10.0},
            "act": {"threshold": 1e6, "false_alarms_per_million_rows": 1.0},
        },
        "tests": [
            drift_test("pooled", 5.5, "warning"),
            drift_test("position", 6.4, "alarm", position=2),
            drift_test("segment", 0.5, "calm", segment={"domain": "code"}),
        ],
        "history": [
            {
                "at": _SINCE,
                "rows": 11_000,
                "evidence_log10_max": 4.0,
                "ece": 0.04,
                "ece_low": 0.03,
                "ece_high": None,
            }
        ],
        "data_quality": [],
        "dependence": {
            "intraclass": 0.025,
            "design_effect": 3.3,
            "requests": 210,
            "rows": 12000,
            "setting": 1.0,
        },
        "exploration": {"share": 0.005, "raised": True},
        "explanations": {
            "psi": [{"position": 1, "value": 0.02}],
            "ks": [{"position": 1, "value": 0.01}],
            "acceptance": {"reference": 0.7, "current": 0.68},
            "verified_length": {"reference": 3.0, "current": 2.9},
            "mix": {"domain=code": {"reference": 0.4, "current": 0.5}},
        },
        "challenger": None,
        "watch": None,
        "cool_down_until": None,
        "last_decision": {
            "kind": "schedule_fit",
            "at": "2026-11-29T12:01:00.000Z",
            "reason": "act alarm at position 2",
        },
    }
    return values | changes
