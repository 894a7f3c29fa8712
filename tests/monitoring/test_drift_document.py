"""The document that readers see: finite, complete, and bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest

from monitoring.drift_document import drift_document, drift_values
from monitoring.loop_settings import LoopSettings
from monitoring.monitor_state_bytes import state_from_bytes, state_to_bytes
from monitoring.revision_predictions import RevisionPredictions
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


def test_a_fresh_champion_has_no_evidence_against_it() -> None:
    """The stake of 32 rows that every run begins with is none."""
    fresh = document(started(SETTINGS))
    few, _ = folded(started(SETTINGS), rows(9, 31), champion=revision(0), settings=SETTINGS)
    for found in (fresh, document(few)):
        assert {(test["evidence"], test["evidence_log10"]) for test in found["tests"]} == {
            (1.0, 0.0)
        }
        assert found["tests"][0]["warn_evidence_log10"] == 0.0


def test_dependence_of_requests_stands_beside_what_is_allowed_for() -> None:
    """Independent rows of 64 requests; of 31 rows nothing can be said."""
    settings = replace(SETTINGS, design_effect=1.5)
    state, _ = folded(started(settings), rows(8, 6400), champion=revision(0), settings=settings)
    values = drift_values(state, standard_error=None, settings=settings)["dependence"]
    assert (values["requests"], values["rows"], values["setting"]) == (64, 6400, 1.5)
    assert abs(values["intraclass"]) < 0.01
    assert values["design_effect"] == pytest.approx(1.0, abs=0.6)
    few, _ = folded(started(SETTINGS), rows(9, 31), champion=revision(0), settings=SETTINGS)
    few_values = drift_values(few, standard_error=None, settings=SETTINGS)["dependence"]
    assert (few_values["intraclass"], few_values["design_effect"]) == (None, None)
    again = state_from_bytes(state_to_bytes(state))
    assert drift_values(again, standard_error=None, settings=settings)["dependence"] == values


def test_exploration_rises_with_the_first_level_of_alarm(drifted: dict[str, Any]) -> None:
    assert drifted["exploration"] == {"share": 0.005, "raised": True}
    assert document(started(SETTINGS))["exploration"] == {"share": 0.0, "raised": False}


def test_every_member_of_the_contract_is_there(drifted: dict[str, Any]) -> None:
    assert {
        "drafter", "revision", "publication", "status", "updated_at", "consumed_through", "rows",
        "rows_total", "levels", "tests", "history", "data_quality", "explanations", "challenger",
        "watch", "cool_down_until", "last_decision", "exploration",
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


def test_residuals_say_how_far_off_the_newest_rows_are() -> None:
    """Domain b is over-confident after a long calibrated past."""
    state, _ = folded(started(SETTINGS), rows(3, 6000), champion=revision(0), settings=SETTINGS)
    calm = document(state)["tests"]
    assert all(abs(test["mean_residual"]) < 0.04 for test in calm)
    more = rows(4, 6000, first_step=6000, scale=[1.0, 3.0] * 3000, domain=["a", "b"] * 3000)
    state, _ = folded(
        state, more, champion=revision(0), settings=SETTINGS, first_batch=20, batch_rows=700
    )
    tests = {
        (test["scope"], test["quantity"], test["position"], str(test["segment"])): test
        for test in document(state)["tests"]
    }
    c = RevisionPredictions.of(revision(0)).conditional(more).astype(float)
    k, n = np.arange(1, 8), more.accepted[:, None]
    seen = k <= np.minimum(n + 1, more.verified[:, None])
    residual = np.where(seen, (k <= n) - c, 0.0)
    half = np.exp2(np.arange(-5999, 1) / 2500.0)
    # What came before the 6,000 rows still weighs 2^-2.4 of them.
    wanted = (half @ residual)[0] / (half @ seen)[0]
    found = tests["position", "conditional", 1, "None"]["mean_residual"]
    assert found == pytest.approx(wanted, abs=0.01)
    odd = np.arange(6000) % 2 == 1
    for tag, chosen in (("a", ~odd), ("b", odd)):
        found = tests["segment", "conditional", None, str({"domain": tag})]["mean_residual"]
        sums = [(half[chosen] @ each[chosen]).sum() for each in (residual, seen)]
        assert found == pytest.approx(sums[0] / sums[1], rel=1e-4)
    assert document(started(SETTINGS))["tests"][0]["mean_residual"] is None


def test_the_end_of_a_watch_is_told_at_the_pace_of_the_rows() -> None:
    state, _ = folded(started(SETTINGS), rows(6, 500), champion=revision(0), settings=SETTINGS)
    state, _ = folded(
        state,
        rows(7, 500, first_step=500),
        champion=revision(1, 1.01),
        settings=SETTINGS,
        previous=revision(0),
        first_batch=5,
    )
    watch = document(state)["watch"]
    assert watch["rows"] == 500
    # 1,000 rows came in 2 seconds; 49,500 are left.
    ends = datetime.fromisoformat(watch["until"]).timestamp()
    assert ends == pytest.approx(state.updated_at + 49_500 * 2.0 / 1000.0, abs=1.0)


def test_a_hold_comes_before_everything_else() -> None:
    state, _ = folded(started(SETTINGS), rows(2, 600), champion=revision(0), settings=SETTINGS)
    held = one(state, None, revision(0), SETTINGS, 0, now=state.updated_at + 1000.0)  # type: ignore[arg-type]
    found = document(held.state)
    assert found["status"] == "held"
    (silence,) = [each for each in found["data_quality"] if each["status"] == "held"]
    assert (silence["monitor"], silence["value"], silence["limit"]) == ("silence", 1000.0, 300.0)
    measured = {each["monitor"]: each["value"] for each in found["data_quality"]}
    assert measured["invalid_share"] == 0.0
    assert 0.5 < measured["acceptance_collapse"] < 1.0
