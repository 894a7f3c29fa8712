from __future__ import annotations

import dataclasses
import math
from typing import Any

from calib.calibration import Calibration
from monitoring.mlflow_mirror.contents import (
    job_content,
    report_content,
    revision_content,
    revision_identity,
)
from monitoring.store.drafters import Drafter
from monitoring.store.revisions import Revision
from tests.monitoring.store.store_fixtures import KEY

DRAFTER = Drafter("code", 3, KEY, 1, 0.0)
WINDOW = {"first_batch": 2, "last_batch": 9, "rows": 500, "digest": "d" * 64, "excluded": {"a": 1}}


def revision(**evidence: Any) -> Revision:
    calibration = Calibration.from_temperatures(
        [1.5, 2.0, 0.8], gamma=3, method="sts", key=KEY, evidence=evidence
    )
    provenance = {"kind": "recalibration", "job": "j1", "options": {"rows": 7}, "window": WINDOW}
    return Revision("code", 4, calibration, None, provenance, 1_800_000_000.25, "worker")


def test_a_revision_says_what_it_is_and_what_it_was_made_from() -> None:
    made = revision()
    content = revision_content(DRAFTER, made)
    assert [(m.key, m.step, m.value) for m in content.metrics] == [
        ("temperature", 1, 1.5),
        ("temperature", 2, 2.0),
        ("temperature", 3, 0.8),
    ]
    expected = {
        "drafter": "code",
        "revision": "4",
        "digest": made.calibration.digest,
        "calibration_key": KEY.digest,
        "method": "sts",
        "status": "fitted",
        "window": "batches 2 to 9, 500 rows",
        "window_digest": "d" * 64,
        "job": "j1",
        "metrics.left_out": "nothing",
    }
    assert {name: content.tags[name] for name in expected} == expected
    assert content.parameters["option.rows"] == "7"
    assert content.parameters["key.target_model"] == "example/target"
    assert content.dataset is not None
    assert content.dataset.digest == "d" * 36  # MLflow takes no more
    assert content.dataset.source["window_digest"] == "d" * 64


def test_a_run_names_the_method_that_was_chosen() -> None:
    """Imputed survival is projected by STS, and is not STS."""
    made = revision()
    made = dataclasses.replace(made, provenance={**made.provenance, "method": "survival"})
    content = revision_content(DRAFTER, made)
    assert content.name == "revision 4 (survival)"
    assert (content.tags["method"], content.parameters["method"]) == ("survival", "survival")


def test_a_run_lasts_as_long_as_its_fit() -> None:
    made = revision()
    for began, shown in ((made.created_at - 12.5, made.created_at - 12.5), (None, made.created_at)):
        content = revision_content(DRAFTER, made, started_at=began)
        assert (content.started_at, content.at) == (shown, made.created_at)


def test_r77_null_errors_are_left_out_with_a_tag() -> None:
    held_out = {
        "positions": [{"ece": {"before": 0.1, "after": None}}, {"ece": None}, {}],
        "survival_ece": {"before": None, "after": 0.2},
    }
    content = revision_content(DRAFTER, revision(held_out=held_out))
    assert all(math.isfinite(m.value) and abs(m.value) < 1e300 for m in content.metrics)
    assert "held_out/ece/after[1]" in content.tags["metrics.left_out"]
    assert "held_out/mean_survival_ece/before" in content.tags["metrics.left_out"]
    told = {
        "report": 8,
        "created_at": 5.0,
        "metrics": {"survival_ece/position_01": None, "rows": 3},
    }
    content = report_content(DRAFTER, told, revision())
    assert [(m.key, m.value, m.step) for m in content.metrics] == [("monitored/rows", 3.0, 8)]
    assert content.tags["report.left_out"] == "monitored/survival_ece/position_01"


def test_another_database_with_the_same_names_has_other_runs() -> None:
    here, there = revision(), dataclasses.replace(revision(), created_at=1_800_000_001.25)
    assert revision_identity(here) != revision_identity(there)


def test_a_refusal_has_a_run_of_its_own_and_a_success_adds_to_its_revision() -> None:
    told = {
        "job": "j2",
        "status": "refused",
        "finished_at": 20.0,
        "started_at": 10.0,
        "options": {"rows": 7},
        "error": None,
        "result": {
            "refusal": "not_better",
            "reason": "it is worse",
            "method": "sts",
            "window": WINDOW,
            "summary": ["One.", "Two."],
            "held_out": {"survival_ece": {"before": 0.1, "after": 0.2}},
        },
    }
    refused = job_content(DRAFTER, told, None)
    assert refused.identity == "code:job:j2"
    assert refused.tags["refusal"] == "not_better"
    assert refused.tags["mlflow.note.content"] == "One.\n\nTwo."
    assert refused.status == "FINISHED"
    assert {m.key for m in refused.metrics} == {
        "held_out/mean_survival_ece/before",
        "held_out/mean_survival_ece/after",
    }
    failed = job_content(
        DRAFTER,
        {**told, "status": "failed", "result": {}, "error": {"reason": "it broke"}},
        None,
    )
    assert (failed.status, failed.tags["error"]) == ("FAILED", "it broke")
    made = revision()
    succeeded = job_content(DRAFTER, {**told, "status": "succeeded"}, made)
    assert succeeded.identity == revision_identity(made)
    assert succeeded.status is None
