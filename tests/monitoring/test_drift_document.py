"""The document that readers see: finite, complete, and bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from monitoring.drift_document import drift_document
from monitoring.loop_settings import LoopSettings
from tests.monitoring.loop_rows import folded, one, revision, rows, started

SETTINGS = LoopSettings(refit_seconds=0.0, history_rows=500)


def document(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        drift_document(state, standard_error=None, settings=SETTINGS)
    )
    return found


@pytest.fixture(scope="module")
def drifted() -> dict[str, Any]:
    state, _ = folded(
        started(SETTINGS),
        rows(1, 2500, scale=1.7, domain=["math", "code"] * 1250),
        champion=revision(4),
        settings=SETTINGS,
        challenger=revision(5, 1.7, window={"last_batch": 2}),
        publication=12,
    )
    return document(state)


def test_before_the_first_row_it_collects() -> None:
    found = document(started(SETTINGS))
    assert (found["status"], found["rows"], found["challenger"]) == ("collecting", 0, None)
    assert found["history"] == []
    assert found["tests"][0]["change_point"] is None


def test_every_member_of_the_contract_is_there(drifted: dict[str, Any]) -> None:
    assert {
        "drafter", "revision", "publication", "status", "updated_at", "consumed_through", "rows",
        "rows_total", "levels", "tests", "history", "data_quality", "explanations", "challenger",
        "watch", "cool_down_until", "last_decision",
    } <= drifted.keys()  # fmt: skip
    assert (drifted["revision"], drifted["publication"], drifted["status"]) == (4, 12, "drift")
    assert drifted["levels"]["act"] == {"threshold": 1e6, "false_alarms_per_million_rows": 1.0}
    for test in drifted["tests"]:
        assert {
            "scope", "position", "segment", "detector", "quantity", "evidence", "evidence_log10",
            "threshold_log10", "status", "rows", "tolerance", "mean_residual", "change_point",
        } <= test.keys()  # fmt: skip


def test_tests_cover_all_traffic_every_position_and_segment(drifted: dict[str, Any]) -> None:
    scopes = [(test["scope"], test["quantity"]) for test in drifted["tests"]]
    assert scopes[:2] == [("pooled", "conditional"), ("pooled", "survival")]
    positions = [t["position"] for t in drifted["tests"] if t["scope"] == "position"]
    assert positions == list(range(1, 8))
    segments = [t["segment"] for t in drifted["tests"] if t["scope"] == "segment"]
    assert segments == [{"domain": "code"}, {"domain": "math"}]
    pooled = drifted["tests"][0]
    assert pooled["status"] == "alarm"
    assert pooled["evidence_log10"] >= pooled["threshold_log10"]["act"]
    assert pooled["change_point"]["row"] > 2000  # rows ago: off from the start


def test_challenger_history_and_explanations_are_told(drifted: dict[str, Any]) -> None:
    challenger = drifted["challenger"]
    assert (challenger["revision"], challenger["threshold_log10"]) == (
        5,
        pytest.approx(1.517, abs=1e-3),
    )
    assert [point["rows"] for point in drifted["history"]] == [500, 1000, 1500, 2000, 2500]
    assert all(
        point["ece_low"] <= point["ece"] <= point["ece_high"] for point in drifted["history"]
    )
    assert len(drifted["explanations"]["psi"]) == 7
    assert drifted["explanations"]["mix"]["domain=code"]["current"] == pytest.approx(0.5, abs=0.01)
    assert drifted["last_decision"]["kind"] in ("promote", "schedule_fit")


def test_a_hold_comes_before_everything_else() -> None:
    state, _ = folded(started(SETTINGS), rows(2, 600), champion=revision(0), settings=SETTINGS)
    held = one(state, None, revision(0), SETTINGS, 0, now=state.updated_at + 1000.0)  # type: ignore[arg-type]
    found = document(held.state)
    assert found["status"] == "held"
    assert [q["monitor"] for q in found["data_quality"] if q["status"] == "held"] == ["silence"]
